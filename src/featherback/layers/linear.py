"""One projection: a frozen, stored weight with an optional bias and an optional LoRA pair.

Forward:   h = s x A^T;   y = x W^T + b + h B^T
Backward:  dB^T = h^T dy;   dh = s dy B;   dA = dh^T x;   dx = dy W + dh A

`h` and `dh` carry the scale s; B is held transposed. See docs/derivations/linear.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

from featherback.backend.protocol import Array, Matrix
from featherback.layers.context import Context

Pairs = Mapping[str, tuple[Array, Array]]


class LoRAFactors(NamedTuple):
    """A (r, in) and B^T (r, out), and where their gradients accumulate (None: they are not wanted)."""

    a: Array
    bt: Array
    scale: float
    da: Array | None = None
    dbt: Array | None = None


class Projection(NamedTuple):
    """y (T, out) = x (T, in) W^T + bias + LoRA. A tuple, because every tile makes three."""

    name: str
    weight: Matrix
    bias: Array | None = None
    lora: LoRAFactors | None = None

    def room_for_h(self, ctx: Context, tokens: int) -> Array | None:
        """An operand (T, r), uninitialised; None without LoRA."""
        return None if self.lora is None else ctx.operands(f"h of {self.name}", tokens, len(self.lora.a))

    def lora_in(self, ctx: Context, x: Array, h: Array | None = None) -> Array | None:
        """h (T, r) = s x A^T, an operand, in its room if it has one; None without LoRA."""
        if self.lora is None:
            return None
        h = self.room_for_h(ctx, len(x)) if h is None else h
        ctx.ops.lora_in(x, self.lora.a, h, self.lora.scale)
        return h

    def run(self, ctx: Context, x: Array, out: Array, *, accumulate: bool = False) -> None:
        """The whole forward pass: out (T, out) (+)= x W^T + bias + LoRA."""
        with ctx.frame():
            self.forward(ctx, x, self.lora_in(ctx, x), out, accumulate=accumulate)
        ctx.release(self.weight)

    def backward(
        self,
        ctx: Context,
        x: Array,
        dy: Array,
        dx: Array,
        *,
        h: Array | None = None,
        accumulate: bool = False,
    ) -> None:
        """The whole backward pass: dA += dh^T x, dB^T += h^T dy, dx (T, in) (+)= dy W + dh A. `h`, if it is there."""
        with ctx.frame():
            h = self.lora_in(ctx, x) if h is None else h
            dh = self.lora_in_backward(ctx, dy)
            self.add_da(ctx, dh, x)
            self.add_dbt(ctx, h, dy)
            self.backward_input(ctx, dy, dh, dx, accumulate=accumulate)
        ctx.release(self.weight)

    def forward(
        self, ctx: Context, x: Array, h: Array | None, out: Array, *, accumulate: bool = False
    ) -> None:
        """out (T, out) (+)= x W^T + bias + h B^T, with h from `lora_in`; without h, LoRA's part is left out."""
        b = None if self.lora is None or h is None else self.lora.bt
        ctx.ops.linear(x, self.weight, out, bias=self.bias, h=h, b=b, accumulate=accumulate)

    def lora_in_backward(self, ctx: Context, dy: Array) -> Array | None:
        """dh (T, r) = s dy B, an operand; None without LoRA."""
        if self.lora is None:
            return None
        dh = ctx.operands(f"dh of {self.name}", len(dy), len(self.lora.a))
        ctx.ops.lora_in(dy, self.lora.bt, dh, self.lora.scale)
        return dh

    def backward_input(
        self, ctx: Context, dy: Array, dh: Array | None, dx: Array, *, accumulate: bool = False
    ) -> None:
        """dx (T, in) (+)= dy W + dh A, with dh from `lora_in_backward`; without dh, LoRA's part is left out."""
        a = None if self.lora is None or dh is None else self.lora.a
        ctx.ops.linear_backward(dy, self.weight, dx, dh=dh, a=a, accumulate=accumulate)

    def outputs(self, first: int, last: int) -> Projection:
        """Outputs [first, last): rows of W, of the bias, columns of B^T."""
        if last - first == self.weight.shape[0]:
            return self
        lora = self.lora
        if lora is not None:
            dbt = None if lora.dbt is None else lora.dbt[:, first:last]
            lora = LoRAFactors(lora.a, lora.bt[:, first:last], lora.scale, lora.da, dbt)
        bias = None if self.bias is None else self.bias[first:last]
        return Projection(self.name, self.weight.slice(rows=(first, last)), bias, lora)

    def inputs(self, first: int, last: int) -> Projection:
        """Inputs [first, last): columns of W and of A."""
        if last - first == self.weight.shape[1]:
            return self
        lora = self.lora
        if lora is not None:
            da = None if lora.da is None else lora.da[:, first:last]
            lora = LoRAFactors(lora.a[:, first:last], lora.bt, lora.scale, da, lora.dbt)
        return Projection(self.name, self.weight.slice(cols=(first, last)), None, lora)

    def accumulator(self, ctx: Context, what: str) -> Array | None:
        """Zeros (T, r) for a T x r product whose long side comes in tiles; None without LoRA."""
        if self.lora is None:
            return None
        total = ctx.floats(f"{what} of {self.name}, sum", ctx.tokens, len(self.lora.a))
        ctx.ops.fill(total, 0)
        return total

    def add_lora_in(self, ctx: Context, x: Array, total: Array | None) -> None:
        """total (T, r) += s x A^T for a tile of x's columns."""
        if self.lora is not None and total is not None:
            ctx.ops.lora_in(x, self.lora.a, total, self.lora.scale, accumulate=True)

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
        ctx.ops.linear_backward(dh, ctx.ops.dense(self.lora.a), dx, accumulate=True)
        self.add_da(ctx, dh, x)

    def add_da(self, ctx: Context, dh: Array | None, x: Array) -> None:
        """dA += dh^T x, if it is wanted."""
        if self.lora is not None and self.lora.da is not None:
            ctx.ops.lora_gradient(dh, x, self.lora.da, accumulate=True)

    def add_dbt(self, ctx: Context, h: Array | None, dy: Array) -> None:
        """dB^T += h^T dy, if it is wanted."""
        if self.lora is not None and self.lora.dbt is not None:
            ctx.ops.lora_gradient(h, dy, self.lora.dbt, accumulate=True)


class BlockWeights(NamedTuple):
    """One block's weights as its layers use them: projections, and vectors such as norms, by name."""

    projections: Mapping[str, Projection]
    vectors: Mapping[str, Array]


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


def pieces(size: int, step: int) -> list[tuple[int, int]]:
    """[first, last) ranges of at most `step` that cover `size`."""
    return [(first, min(size, first + step)) for first in range(0, size, step)]
