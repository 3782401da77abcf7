"""One projection: a frozen, stored weight with an optional bias and an optional LoRA pair.

Forward:   h = s x A^T;   y = x W^T + b + h B^T
Backward:  dB^T = h^T dy;   dh = s dy B;   dA = dh^T x;   dx = dy W + dh A

`h` and `dh` carry the scale s; B is held transposed. See docs/derivations/linear.md.
"""

from __future__ import annotations

from collections.abc import Mapping
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

    def lora_in(self, ctx: Context, x: Array, place: Array | None = None) -> Array | None:
        """h (T, r) = s x A^T, an operand, in its `place` if it has one; None without LoRA."""
        if self.lora is None:
            return None
        h = ctx.operands(f"h of {self.name}", len(x), len(self.lora.a)) if place is None else place
        ctx.ops.lora_in(x, self.lora.a, h, self.lora.scale)
        return h

    def forward(
        self, ctx: Context, x: Array, h: Array | None, out: Array, *, accumulate: bool = False
    ) -> None:
        """out (T, out) (+)= x W^T + bias + h B^T, with h from `lora_in`; without h, LoRA's part is left out."""
        b = self.lora.bt if self.lora is not None and h is not None else None
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
        a = self.lora.a if self.lora is not None and dh is not None else None
        ctx.ops.linear_backward(dy, self.weight, dx, dh=dh, a=a, accumulate=accumulate)

    def backward_factors(self, ctx: Context, x: Array, h: Array | None, dy: Array, dh: Array | None) -> None:
        """dA += dh^T x and dB^T += h^T dy."""
        if self.lora is not None:
            add_outer(ctx, dh, x, self.lora.da)
            add_outer(ctx, h, dy, self.lora.dbt)

    def outputs(self, first: int, last: int) -> Projection:
        """Outputs [first, last) of a projection without bias: rows of W, columns of B^T."""
        if last - first == self.weight.shape[0]:
            return self
        lora = self.lora
        if lora is not None:
            dbt = None if lora.dbt is None else lora.dbt[:, first:last]
            lora = LoRAFactors(lora.a, lora.bt[:, first:last], lora.scale, lora.da, dbt)
        return Projection(self.name, self.weight.slice(rows=(first, last)), None, lora)

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
        add_outer(ctx, dh, x, self.lora.da)


def add_outer(ctx: Context, factor: Array | None, x: Array, into: Array | None) -> None:
    """into (r, n) += factor (T, r)^T x (T, n), if the gradient is wanted."""
    if factor is not None and into is not None:
        ctx.ops.lora_gradient(factor, x, into, accumulate=True)


class BlockWeights(NamedTuple):
    """One block's weights as its layers use them: projections, and vectors such as norms, by name."""

    projections: Mapping[str, Projection]
    vectors: Mapping[str, Array]


def pieces(size: int, step: int) -> list[tuple[int, int]]:
    """[first, last) ranges of at most `step` that cover `size`."""
    return [(first, min(size, first + step)) for first in range(0, size, step)]
