"""One projection: a frozen, stored weight with an optional bias and an optional LoRA pair.

Forward:   h = s x A^T;   y = x W^T + b + h B^T
Backward:  dB^T = h^T dy;   dh = s dy B;   dA = dh^T x;   dx = dy W + dh A

`h` and `dh` carry the scale s; B is held transposed. See docs/derivations/linear.md. With dropout, s is s / (1 - p),
LoRA reads M x for x, and dh A passes M on its way to dx (docs/derivations/dropout.md). With DoRA,
y = c (x W^T + h B^T) + b, and c dy takes the place of dy (docs/derivations/dora.md). Where W itself is trained,
dW = dy^T x is not computed here: its factors are handed to what trains it (docs/derivations/whole.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import NamedTuple, Protocol

from featherback.backend.protocol import Array, Matrix
from featherback.layers import moved
from featherback.layers.context import Context
from featherback.layers.dropout import Mask


class Factors(NamedTuple):
    """What is trained of one projection, or the gradients of it: A (r, in), B^T (r, out), DoRA's m (out,)."""

    a: Array
    bt: Array
    m: Array | None = None


Pairs = Mapping[str, Factors]


class LoRAFactors(NamedTuple):
    """A (r, in) and B^T (r, out), and where their gradients accumulate (None: they are not wanted)."""

    a: Array
    bt: Array
    scale: float
    da: Array | None = None
    dbt: Array | None = None
    mask: Mask | None = None  # dropout of what A reads; `scale` has its gain already


class Magnitude(NamedTuple):
    """DoRA's length of each output's weights: m (out,), c = m / n (out,), and where dm accumulates (None: unwanted)."""

    m: Array
    c: Array
    dm: Array | None = None

    def outputs(self, first: int, last: int) -> Magnitude:
        """Of outputs [first, last)."""
        dm = None if self.dm is None else self.dm[first:last]
        return Magnitude(self.m[first:last], self.c[first:last], dm)


class LayerSink(Protocol):
    """Takes the gradients of a layer's own weights, each when the weight is no longer needed: it may change at once."""

    def matrix(self, ctx: Context, name: str, first_row: int, dy: Array, x: Array) -> None:
        """Of rows [first_row, first_row + out) of a matrix: dy^T x, from operands dy (T, out) and x (T, in)."""

    def bias(self, ctx: Context, name: str, first_row: int, dy: Array) -> None:
        """Of a projection's bias, the same rows of it: the sum of dy (T, out), an operand, over the tokens."""

    def vector(self, ctx: Context, name: str, gradient: Array) -> None:
        """Of a norm's weight: `gradient` (n,), float32."""


class Projection(NamedTuple):
    """y (T, out) = x (T, in) W^T + bias + LoRA. A tuple, because every tile makes three."""

    name: str
    weight: Matrix
    bias: Array | None = None
    lora: LoRAFactors | None = None
    magnitude: Magnitude | None = None  # of DoRA
    sink: LayerSink | None = None  # what trains the weight and the bias
    layer: int | None = None
    corner: tuple[int, int] = (0, 0)  # row and column of the stored weight where this part begins

    def room_for_h(self, ctx: Context, tokens: int) -> Array | None:
        """An operand (T, r), uninitialised; None without LoRA."""
        return None if self.lora is None else ctx.operands(f"h of {self.name}", tokens, len(self.lora.a))

    def lora_in(self, ctx: Context, x: Array, h: Array | None = None) -> Array | None:
        """h (T, r) = s x A^T, an operand, in its room if it has one; None without LoRA."""
        if self.lora is None:
            return None
        h = self.room_for_h(ctx, len(x)) if h is None else h
        with self._read(ctx, x) as read:
            ctx.ops.lora_in(read, self.lora.a, h, self.lora.scale)
        return h

    def run(self, ctx: Context, x: Array, out: Array, *, accumulate: bool = False) -> None:
        """The whole forward pass: out (T, out) (+)= x W^T + bias + LoRA."""
        with ctx.frame():
            self.forward(ctx, x, self.lora_in(ctx, x), out, accumulate=accumulate)
        ctx.release(self.weight)

    def backward(
        self, ctx: Context, x: Array, dy: Array, dx: Array, *, h: Array | None = None, accumulate: bool = False
    ) -> None:
        """The whole backward pass: dA += dh^T x, dB^T += h^T dy, dx (T, in) (+)= dy W + dh A. `h`, if it is there."""
        with ctx.frame():
            room = self.room_for_h(ctx, len(x)) if h is None else None
            dh = self.lora_in_backward(ctx, dy)
            with self._read(ctx, x) as read:
                if self.lora is not None and room is not None:
                    ctx.ops.lora_in(read, self.lora.a, room, self.lora.scale)
                self._add_da(ctx, dh, read)
            self.add_dbt(ctx, room if h is None else h, dy)
            self.backward_input(ctx, dy, dh, dx, accumulate=accumulate)
        self.hand_over(ctx, x, dy)
        ctx.release(self.weight)

    def hand_over(self, ctx: Context, x: Array, dy: Array) -> None:
        """Give x (T, in) and dy (T, out), operands, to what trains the weight; it is not used after."""
        if self.sink is not None:
            self.sink.matrix(ctx, self.name, self.corner[0], dy, x)
            if self.bias is not None:
                self.sink.bias(ctx, self.name, self.corner[0], dy)

    def forward(self, ctx: Context, x: Array, h: Array | None, out: Array, *, accumulate: bool = False) -> None:
        """out (T, out) (+)= x W^T + bias + h B^T, with h from `lora_in`; without h, LoRA's part is left out.

        With DoRA, out is overwritten.
        """
        assert self.magnitude is None or not accumulate
        self.product(ctx, x, h, out, accumulate=accumulate)
        self.finish(ctx, out)

    def product(self, ctx: Context, x: Array, h: Array | None, out: Array, *, accumulate: bool = False) -> None:
        """As `forward`, where more may be added to out before `finish`."""
        b = None if self.lora is None or h is None else self.lora.bt
        bias = self.bias if self.magnitude is None else None
        if ctx.moves is None:
            ctx.ops.linear(x, self.weight, out, bias=bias, h=h, b=b, accumulate=accumulate)
        else:
            spot = moved.Spot(self.name, self.layer, *self.corner)
            moved.product(ctx, x, self.weight, spot, out, bias=bias, accumulate=accumulate)

    def finish(self, ctx: Context, out: Array) -> None:
        """DoRA: u (T, out), whole, becomes y = c u + bias. Otherwise it is that already."""
        if self.magnitude is not None:
            ctx.ops.scale_columns(out, self.magnitude.c, out, bias=self.bias)

    def weigh(self, ctx: Context, dy: Array) -> None:
        """DoRA: dy (T, out), an operand, becomes du = c dy, which all that follows takes for dy."""
        if self.magnitude is not None:
            ctx.ops.scale_columns(dy, self.magnitude.c, dy)

    def add_dm(self, ctx: Context, dy: Array, y: Array | None) -> None:
        """DoRA: dm += sum over t of dy (y - bias) / m, if it is wanted. dy (T, out) as it was before `weigh`."""
        if self.magnitude is not None and self.magnitude.dm is not None:
            m, _, dm = self.magnitude
            ctx.ops.column_dots(dy, y, dm, less=self.bias, over=m)

    def lora_in_backward(self, ctx: Context, dy: Array) -> Array | None:
        """dh (T, r) = s dy B, an operand; None without LoRA."""
        if self.lora is None:
            return None
        dh = ctx.operands(f"dh of {self.name}", len(dy), len(self.lora.a))
        ctx.ops.lora_in(dy, self.lora.bt, dh, self.lora.scale)
        return dh

    def backward_input(self, ctx: Context, dy: Array, dh: Array | None, dx: Array, *, accumulate: bool = False) -> None:
        """dx (T, in) (+)= dy W + dh A, with dh from `lora_in_backward`; without dh, LoRA's part is left out."""
        if self.lora is None or dh is None or self.lora.mask is None:
            a = None if self.lora is None or dh is None else self.lora.a
            ctx.ops.linear_backward(dy, self.weight, dx, dh=dh, a=a, accumulate=accumulate)
        else:
            ctx.ops.linear_backward(dy, self.weight, dx, accumulate=accumulate)
            self._add_through_mask(ctx, dh, self.lora, self.lora.mask, dx)

    def outputs(self, first: int, last: int) -> Projection:
        """Outputs [first, last): rows of W, of the bias, columns of B^T."""
        if last - first == self.weight.shape[0]:
            return self
        lora = self.lora
        if lora is not None:
            dbt = None if lora.dbt is None else lora.dbt[:, first:last]
            lora = lora._replace(bt=lora.bt[:, first:last], dbt=dbt)
        bias = None if self.bias is None else self.bias[first:last]
        magnitude = None if self.magnitude is None else self.magnitude.outputs(first, last)
        weight = self.weight.slice(rows=(first, last))
        row, col = self.corner
        return Projection(self.name, weight, bias, lora, magnitude, self.sink, self.layer, (row + first, col))

    def inputs(self, first: int, last: int) -> Projection:
        """Inputs [first, last): columns of W and of A. Their products are summed, and only the sum is finished."""
        if last - first == self.weight.shape[1]:
            return self
        lora = self.lora
        if lora is not None:
            da = None if lora.da is None else lora.da[:, first:last]
            mask = None if lora.mask is None else lora.mask.inputs(first)
            lora = lora._replace(a=lora.a[:, first:last], da=da, mask=mask)
        row, col = self.corner
        weight = self.weight.slice(cols=(first, last))
        return Projection(self.name, weight, None, lora, layer=self.layer, corner=(row, col + first))

    def accumulator(self, ctx: Context, what: str) -> Array | None:
        """Zeros (T, r) for a T x r product whose long side comes in tiles; None without LoRA."""
        if self.lora is None:
            return None
        total = ctx.floats(f"{what} of {self.name}, sum", ctx.tokens, len(self.lora.a))
        ctx.ops.fill(total, 0)
        return total

    def add_lora_in(self, ctx: Context, x: Array, total: Array | None, dh: Array | None = None) -> None:
        """total (T, r) += s x A^T for a tile of x's columns; with dh, dA += dh^T x as well, if it is wanted."""
        if self.lora is not None and total is not None:
            with self._read(ctx, x) as read:
                ctx.ops.lora_in(read, self.lora.a, total, self.lora.scale, accumulate=True)
                if dh is not None:
                    self._add_da(ctx, dh, read)

    def add_lora_in_backward(self, ctx: Context, dy: Array, total: Array | None) -> None:
        """total (T, r) += s dy B for a tile of dy's columns."""
        if self.lora is not None and total is not None:
            ctx.ops.lora_in(dy, self.lora.bt, total, self.lora.scale, accumulate=True)

    def finished(self, ctx: Context, total: Array | None, what: str) -> Array | None:
        """An accumulated (T, r) as an operand."""
        if total is None or total.dtype == ctx.operand:
            return total
        operand = ctx.operands(f"{what} of {self.name}", *total.shape)
        ctx.ops.cast(total, operand)
        return operand

    def backward_lora_in(self, ctx: Context, total: Array | None, x: Array, dx: Array) -> None:
        """dx += dh A and dA += dh^T x, once the sum dh is complete."""
        dh = self.finished(ctx, total, "dh")
        if self.lora is None or dh is None:
            return
        if self.lora.mask is None:
            ctx.ops.linear_backward(dh, ctx.ops.dense(self.lora.a), dx, accumulate=True)
        else:
            self._add_through_mask(ctx, dh, self.lora, self.lora.mask, dx)
        with self._read(ctx, x) as read:
            self._add_da(ctx, dh, read)

    @contextmanager
    def _read(self, ctx: Context, x: Array) -> Iterator[Array]:
        """What A reads of x (T, in): M x, or x itself."""
        mask = None if self.lora is None else self.lora.mask
        if mask is None:
            yield x
            return
        with ctx.frame():
            read = ctx.operands(f"input of {self.name}, dropped", *x.shape)
            ctx.drop(mask, x, read)
            yield read

    def _add_through_mask(self, ctx: Context, dh: Array, lora: LoRAFactors, mask: Mask, dx: Array) -> None:
        """dx (T, in) += M (dh A)."""
        with ctx.frame():
            a = ctx.floats(f"A of {self.name}, columns of a tile", *lora.a.shape)  # a product reads whole rows
            ctx.ops.cast(lora.a, a)
            through = ctx.floats(f"gradient of the input of {self.name}, not dropped", *dx.shape)
            ctx.ops.linear_backward(dh, ctx.ops.dense(a), through)
            ctx.drop(mask, through, dx, accumulate=True)

    def _add_da(self, ctx: Context, dh: Array | None, read: Array) -> None:
        """dA += dh^T (M x), if it is wanted."""
        if self.lora is not None and self.lora.da is not None:
            ctx.ops.lora_gradient(dh, read, self.lora.da, accumulate=True)

    def add_dbt(self, ctx: Context, h: Array | None, dy: Array) -> None:
        """dB^T += h^T dy, if it is wanted."""
        if self.lora is not None and self.lora.dbt is not None:
            ctx.ops.lora_gradient(h, dy, self.lora.dbt, accumulate=True)


class BlockWeights(NamedTuple):
    """One block's weights as its layers use them: projections, and vectors such as norms, by name."""

    projections: Mapping[str, Projection]
    vectors: Mapping[str, Array]
    sink: LayerSink | None = None  # what trains them


def normed(ctx: Context, name: str, x: Array, w: BlockWeights, norm: str | None, eps: float) -> Array:
    """n (T, D) = rms(x) g, or x where there is no `norm`; an operand, which may be x itself."""
    if norm is None and x.dtype == ctx.operand:
        return x
    n = ctx.operands(name, *x.shape)
    if norm is None:
        ctx.ops.cast(x, n)
    else:
        ctx.ops.rms_norm(x, w.vectors[norm], eps, n)
    return n


def norm_backward(
    ctx: Context, dn: Array, x: Array, w: BlockWeights, norm: str, eps: float, dx: Array, *,
    accumulate: bool = True,
) -> None:  # fmt: skip
    """dx (T, D) (+)= the gradient of x from dn (T, D), float32, with n = rms(x) g; that of g goes to its sink."""
    weight = w.vectors[norm]
    with ctx.frame():
        gradient = None
        if w.sink is not None:
            gradient = ctx.floats("gradient of a norm", *weight.shape)
            ctx.ops.fill(gradient, 0)
            norm_gradient(ctx, dn, x, eps, gradient)
        ctx.ops.rms_norm_backward(dn, x, weight, eps, dx, accumulate=accumulate)
        if w.sink is not None and gradient is not None:
            w.sink.vector(ctx, norm, gradient)


def norm_gradient(ctx: Context, dn: Array, x: Array, eps: float, gradient: Array) -> None:
    """gradient (n,) += that of a norm's weight from dn (T, D), float32: the sum over tokens of dn x / rms(x).

    A weight of one head (n,) is every head's: D is a multiple of n.
    """
    (size,) = gradient.shape
    with ctx.frame():
        ones = ctx.floats("a norm without weight", size)
        ctx.ops.fill(ones, 1)
        unit = ctx.floats("normed without weight", *x.shape)
        ctx.ops.rms_norm(x, ones, eps, unit)
        shape = (x.shape[0] * x.shape[1] // size, size)
        ctx.ops.column_dots(dn.reshape(*shape), unit.reshape(*shape), gradient)


class Rows(NamedTuple):
    """Rows [first, last) of a stored projection: one of several that a file holds as one tensor."""

    stored: str
    first: int
    last: int

    def of(self, w: BlockWeights) -> Projection:
        """Their part of the weight and of its LoRA pair, whose A all parts share."""
        return w.projections[self.stored].outputs(self.first, self.last)


def row_ranges(sizes: Mapping[str, int], fused: str | None) -> dict[str, Rows]:
    """Where parts of these sizes lie: each in a projection of its own, or one below the other in `fused`."""
    if fused is None:
        return {part: Rows(f"{part}_proj", 0, size) for part, size in sizes.items()}
    ends = accumulate(sizes.values())
    return {part: Rows(fused, end - size, end) for (part, size), end in zip(sizes.items(), ends)}


def by_stored(parts: Mapping[str, Rows], wanted: Iterable[str]) -> dict[str, list[str]]:
    """The wanted parts by the stored projection that holds them: they share its A, and so h = s x A^T."""
    found: dict[str, list[str]] = {}
    for part in wanted:
        found.setdefault(parts[part].stored, []).append(part)
    return found


def stored_shapes(parts: Mapping[str, Rows], inputs: int) -> dict[str, tuple[int, int]]:
    """(out, in) of the projections that hold these parts."""
    return {rows.stored: (rows.last, inputs) for rows in parts.values()}  # the last part says where they end
