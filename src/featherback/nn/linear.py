"""One projection: a frozen, stored weight with an optional bias and an optional adapter.

Forward:   y = x W^T + b;   backward:  dx = dy W

What an adapter reads of x, adds to the product, does to the finished output, and the gradients of that, it is asked for
at fixed points (`nn.adapters.base`). Where W itself is trained, dW = dy^T x is not computed here: its factors are
handed to what trains it (docs/derivations/whole.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple, Protocol

from featherback.engine.backend.protocol import Array, Matrix
from featherback.nn import moved
from featherback.nn.adapters.base import AtProjection
from featherback.nn.context import Context


class LayerSink(Protocol):
    """Takes the gradients of a layer's own weights, each when the weight is no longer needed: it may change at once."""

    def matrix(self, ctx: Context, name: str, first_row: int, dy: Array, x: Array) -> None:
        """Of rows [first_row, first_row + out) of a matrix: dy^T x, from operands dy (T, out) and x (T, in)."""

    def bias(self, ctx: Context, name: str, first_row: int, dy: Array) -> None:
        """Of a projection's bias, the same rows of it: the sum of dy (T, out), an operand, over the tokens."""

    def vector(self, ctx: Context, name: str, gradient: Array) -> None:
        """Of a norm's weight: `gradient` (n,), float32."""


class Projection(NamedTuple):
    """y (T, out) = x (T, in) W^T + bias, adapted. A tuple, because every tile makes three."""

    name: str
    weight: Matrix
    bias: Array | None = None
    adapter: AtProjection | None = None
    sink: LayerSink | None = None  # what trains the weight and the bias
    layer: int | None = None
    corner: tuple[int, int] = (0, 0)  # row and column of the stored weight where this part begins

    @property
    def needs_output(self) -> bool:
        """Whether the finished output must have an array of its own: the adapter changes it, and reads it later."""
        return self.adapter is not None and self.adapter.needs_output

    @property
    def needs_input(self) -> bool:
        """Whether `backward_input` reads x."""
        return self.adapter is not None and (self.adapter.changes_input or self.adapter.reads_product)

    def outputs(self, first: int, last: int) -> Projection:
        """Outputs [first, last): rows of W, and of the bias."""
        if last - first == self.weight.shape[0]:
            return self
        adapter = None if self.adapter is None else self.adapter.outputs(first, last)
        bias = None if self.bias is None else self.bias[first:last]
        weight = self.weight.slice(rows=(first, last))
        row, col = self.corner
        return Projection(self.name, weight, bias, adapter, self.sink, self.layer, (row + first, col))

    def inputs(self, first: int, last: int) -> Projection:
        """Inputs [first, last): columns of W. Their products are summed, and only the sum is finished."""
        if last - first == self.weight.shape[1]:
            return self
        adapter = None if self.adapter is None else self.adapter.inputs(first, last)
        row, col = self.corner
        weight = self.weight.slice(cols=(first, last))
        return Projection(self.name, weight, None, adapter, layer=self.layer, corner=(row, col + first))

    def run(self, ctx: Context, x: Array, out: Array, *, accumulate: bool = False) -> None:
        """The whole forward pass: out (T, out) (+)= y."""
        with ctx.frame():
            self.forward(ctx, x, self.read(ctx, x), out, accumulate=accumulate)
        ctx.release(self.weight)

    def backward(
        self, ctx: Context, x: Array, dy: Array, dx: Array, *, h: Array | None = None, accumulate: bool = False
    ) -> None:
        """The whole backward pass from dy as `weigh` left it: dx (T, in) (+)= that of x. `h`, if it is there."""
        with ctx.frame():
            room = self.room_for_h(ctx, len(x)) if h is None else None
            dh = self.read_backward(ctx, dy)
            if self.adapter is not None:
                self.adapter.read(ctx, x, room, dh)
                self.adapter.collect_b(ctx, room if h is None else h, dy)
            self.backward_input(ctx, dy, dh, x, dx, accumulate=accumulate)
        self.hand_over(ctx, x, dy)
        ctx.release(self.weight)

    def hand_over(self, ctx: Context, x: Array, dy: Array) -> None:
        """Give x (T, in) and dy (T, out), operands, to what trains the weight; it is not used after."""
        if self.sink is not None:
            self.sink.matrix(ctx, self.name, self.corner[0], dy, x)
            if self.bias is not None:
                self.sink.bias(ctx, self.name, self.corner[0], dy)

    def forward(self, ctx: Context, x: Array, h: Array | None, out: Array, *, accumulate: bool = False) -> None:
        """out (T, out) (+)= y, with h from `read`. What `finish` changes must be whole, and is overwritten."""
        assert not accumulate or not self.needs_output
        self.product(ctx, x, h, out, accumulate=accumulate)
        self.finish(ctx, out)

    def product(self, ctx: Context, x: Array, h: Array | None, out: Array, *, accumulate: bool = False) -> None:
        """As `forward`, where more may be added to out before `finish`. Without h, nothing is added to the product."""
        adapter, bias = self.adapter, self.bias
        if ctx.moves is not None:
            spot = moved.Spot(self.name, self.layer, *self.corner)
            moved.product(ctx, x, self.weight, spot, out, bias=bias, accumulate=accumulate)
        elif adapter is None:
            ctx.ops.linear(x, self.weight, out, bias=bias, accumulate=accumulate)
        else:
            b = None if h is None else adapter.b
            bias = None if adapter.adds_bias else bias
            if adapter.changes_input:
                with ctx.frame():
                    changed = adapter.change(ctx, x)
                    ctx.ops.linear(changed, self.weight, out, bias=bias, h=h, b=b, accumulate=accumulate)
            else:
                ctx.ops.linear(x, self.weight, out, bias=bias, h=h, b=b, accumulate=accumulate)

    def finish(self, ctx: Context, out: Array) -> None:
        """u (T, out), whole, becomes y."""
        if self.adapter is not None and self.adapter.needs_output:
            self.adapter.finish(ctx, out, self.bias)

    def collect(self, ctx: Context, dy: Array, y: Array | None) -> None:
        """Collect the gradients of what `finish` does; dy (T, out) as it was before `weigh`."""
        if self.adapter is not None and self.adapter.needs_output:
            self.adapter.collect(ctx, dy, y, self.bias)

    def weigh(self, ctx: Context, dy: Array) -> None:
        """dy (T, out), an operand, becomes du, which all that follows takes for dy."""
        if self.adapter is not None and self.adapter.needs_output:
            self.adapter.weigh(ctx, dy)

    def room_for_h(self, ctx: Context, tokens: int) -> Array | None:
        """An operand (T, r), uninitialised; None where nothing is read of x."""
        width = 0 if self.adapter is None else self.adapter.width
        return ctx.operands(f"h of {self.name}", tokens, width) if width else None

    def read(self, ctx: Context, x: Array, h: Array | None = None) -> Array | None:
        """h (T, r), an operand, in its room if it has one; None where nothing is read of x."""
        h = self.room_for_h(ctx, len(x)) if h is None else h
        if self.adapter is not None and h is not None:
            self.adapter.read(ctx, x, h)
        return h

    def read_backward(self, ctx: Context, dy: Array) -> Array | None:
        """dh (T, r), an operand, from dy (T, out); None where nothing is read of x."""
        width = 0 if self.adapter is None else self.adapter.width
        if self.adapter is None or not width:
            return None
        dh = ctx.operands(f"dh of {self.name}", len(dy), width)
        self.adapter.read_backward(ctx, dy, dh)
        return dh

    def backward_input(
        self, ctx: Context, dy: Array, dh: Array | None, x: Array | None, dx: Array, *, accumulate: bool = False
    ) -> None:
        """dx (T, in) (+)= the gradient of x, with dh from `read_backward`; without dh, none of what comes through h.

        x (T, in) is read where `needs_input`.
        """
        adapter = self.adapter
        if adapter is None:
            ctx.ops.linear_backward(dy, self.weight, dx, accumulate=accumulate)
        elif adapter.changes_input:
            assert x is not None
            with ctx.frame():
                d_changed = ctx.floats(f"gradient of what {self.name} reads", *dx.shape)
                ctx.ops.linear_backward(dy, self.weight, d_changed)
                adapter.change_backward(ctx, x, d_changed, dx, accumulate=accumulate)
            if dh is not None:
                adapter.add_to_input(ctx, dh, dx)
        elif adapter.reads_product:
            assert x is not None
            with ctx.frame():
                u = ctx.floats(f"product of {self.name}", *dy.shape)
                du = ctx.operands(f"gradient of the product of {self.name}", *dy.shape)
                self.product(ctx, x, None, u)
                adapter.product_backward(ctx, u, dy, du)
                ctx.ops.linear_backward(du, self.weight, dx, accumulate=accumulate)
        elif dh is None or (a := adapter.fused_a) is None:
            ctx.ops.linear_backward(dy, self.weight, dx, accumulate=accumulate)
            if dh is not None:
                adapter.add_to_input(ctx, dh, dx)
        else:
            ctx.ops.linear_backward(dy, self.weight, dx, dh=dh, a=a, accumulate=accumulate)

    def accumulator(self, ctx: Context, what: str) -> Array | None:
        """Zeros (T, r) for a T x r product whose long side comes in tiles; None where there is none."""
        width = 0 if self.adapter is None else self.adapter.width
        if not width:
            return None
        total = ctx.floats(f"{what} of {self.name}, sum", ctx.tokens, width)
        ctx.ops.fill(total, 0)
        return total

    def add_read(self, ctx: Context, x: Array, total: Array | None, dh: Array | None = None) -> None:
        """total (T, r) += what is read of a tile of x's columns; with dh, gradients of what reads are collected."""
        if self.adapter is not None and total is not None:
            self.adapter.read(ctx, x, total, dh, accumulate=True)

    def add_read_backward(self, ctx: Context, dy: Array, total: Array | None) -> None:
        """total (T, r) += dh from a tile of dy's columns."""
        if self.adapter is not None and total is not None:
            self.adapter.read_backward(ctx, dy, total, accumulate=True)

    def summed(self, ctx: Context, total: Array | None, what: str) -> Array | None:
        """An accumulated (T, r) as an operand."""
        if total is None or total.dtype == ctx.operand:
            return total
        operand = ctx.operands(f"{what} of {self.name}", *total.shape)
        ctx.ops.cast(total, operand)
        return operand

    def backward_read(self, ctx: Context, total: Array | None, x: Array, dx: Array) -> None:
        """dx += what comes through h, and gradients of what reads x are collected, once the sum dh is complete."""
        dh = self.summed(ctx, total, "dh")
        if self.adapter is not None and dh is not None:
            self.adapter.add_to_input(ctx, dh, dx)
            self.adapter.read(ctx, x, dh=dh)

    def collect_b(self, ctx: Context, h: Array | None, dy: Array) -> None:
        """Collect the gradient of what h is multiplied by."""
        if self.adapter is not None:
            self.adapter.collect_b(ctx, h, dy)


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
        """Their part of the weight and of its adapter; all parts share what that reads."""
        return w.projections[self.stored].outputs(self.first, self.last)


def row_ranges(sizes: Mapping[str, int], fused: str | None) -> dict[str, Rows]:
    """Where parts of these sizes lie: each in a projection of its own, or one below the other in `fused`."""
    if fused is None:
        return {part: Rows(f"{part}_proj", 0, size) for part, size in sizes.items()}
    ends = accumulate(sizes.values())
    return {part: Rows(fused, end - size, end) for (part, size), end in zip(sizes.items(), ends)}


def by_stored(parts: Mapping[str, Rows], wanted: Iterable[str]) -> dict[str, list[str]]:
    """The wanted parts by the stored projection that holds them: they share what its adapter reads, h."""
    found: dict[str, list[str]] = {}
    for part in wanted:
        found.setdefault(parts[part].stored, []).append(part)
    return found


def stored_shapes(parts: Mapping[str, Rows], inputs: int) -> dict[str, tuple[int, int]]:
    """(out, in) of the projections that hold these parts."""
    return {rows.stored: (rows.last, inputs) for rows in parts.values()}  # the last part says where they end
