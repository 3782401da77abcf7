"""IA3 (Liu et al., 2022, arXiv 2205.05638): a trained scale l of the outputs, or of the inputs of feed-forward modules.

Forward:   y = l u,  u = x W^T + bias;   or y = (l x) W^T + bias
Backward:  du = l dy,  dl = sum over tokens of dy u;   or dx = l dx',  dl = sum over tokens of x dx',  dx' = dy W

u cannot be recovered from y = l u where l is 0, so the backward pass computes u again. See docs/derivations/ia3.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from featherback.core.noise import Key
from featherback.engine.backend.protocol import Array
from featherback.nn.adapters.base import AtProjection, Float32, Kind, Part, Setup, Shape, Values
from featherback.nn.context import Context


@dataclass(slots=True)
class ScaledOutput(AtProjection):
    """l (out,), and the array that its gradient is added to (None: not wanted)."""

    name: str
    l: Array  # noqa: E741
    dl: Array | None = None
    needs_output: ClassVar[bool] = True  # type: ignore[misc]
    reads_product: ClassVar[bool] = True  # type: ignore[misc]

    def outputs(self, first: int, last: int) -> ScaledOutput:
        return ScaledOutput(self.name, self.l[first:last], None if self.dl is None else self.dl[first:last])

    def finish(self, ctx: Context, out: Array, bias: Array | None) -> None:
        """y (T, out) = l u, in place."""
        ctx.ops.scale_columns(out, self.l, out)

    def product_backward(self, ctx: Context, u: Array, dy: Array, du: Array) -> None:
        """y = l u, so dl (out,) += sum over tokens of dy u, and du (T, out) = l dy."""
        if self.dl is not None:
            ctx.ops.column_dots(dy, u, self.dl)
        ctx.ops.scale_columns(dy, self.l, du)


@dataclass(slots=True)
class ScaledInput(AtProjection):
    """l (in,), and the array that its gradient is added to (None: not wanted)."""

    name: str
    l: Array  # noqa: E741
    dl: Array | None = None
    changes_input: ClassVar[bool] = True  # type: ignore[misc]

    def inputs(self, first: int, last: int) -> ScaledInput:
        return ScaledInput(self.name, self.l[first:last], None if self.dl is None else self.dl[first:last])

    def change(self, ctx: Context, x: Array) -> Array:
        """x' (T, in) = l x."""
        scaled = ctx.operands(f"input of {self.name}, scaled", *x.shape)
        ctx.ops.scale_columns(x, self.l, scaled)
        return scaled

    def change_backward(self, ctx: Context, x: Array, d_changed: Array, dx: Array, *, accumulate: bool) -> None:
        """x' = l x, so dl (in,) += sum over tokens of x dx', and dx (T, in) (+)= l dx'."""
        if self.dl is not None:
            ctx.ops.column_dots(d_changed, x, self.dl)
        ctx.ops.scale_columns(d_changed, self.l, dx, accumulate=accumulate)


@dataclass(frozen=True, kw_only=True)
class IA3Kind(Kind):
    """IA3. `feedforward` lists the targets whose inputs are scaled; all others have their outputs scaled."""

    title: ClassVar[str] = "IA3"
    targets: ClassVar[tuple[str, ...]] = ("k|qkv", "v|qkv", "down")
    rate_width: ClassVar[int | None] = 576

    feedforward: tuple[str, ...] = ("down_proj",)

    @property
    def growth(self) -> float:
        return 0.1

    def describe(self) -> str:
        return "trained scales"

    def options(self) -> dict[str, Any]:
        return {"adapter": "ia3", "rank": None, "alpha": None, "rslora": False, "dora": False}

    def parts(self, target: str, shape: Shape) -> dict[str, Part]:
        out, inputs = shape
        if target in self.feedforward:
            return {"l": Part("l of inputs", (inputs,), (1, inputs), by_input=True)}
        return {"l": Part("l", (out,), (out, 1), by_output=True)}

    def initialise(self, values: Values, fixed: Float32 | None, key: Key) -> None:
        """Write ones, which change nothing."""
        for l in values.values():  # noqa: E741
            l[...] = 1

    def attach(self, setup: Setup) -> AtProjection:
        ((slot, l),) = setup.values.items()  # noqa: E741
        return (ScaledOutput if slot == "l" else ScaledInput)(setup.name, l, setup.gradients.get(slot))

    def change_of(self, before: Float32, values: Values, first: int, last: int) -> Float32:
        """Return (l - 1) W for rows [first, last) of W, with l along rows or columns."""
        l = values["l"][first:last, None] if "l" in values else values["l of inputs"]  # noqa: E741
        change: Float32 = before * (l - np.float32(1))
        return change

    def changes_bias(self, target: str) -> bool:
        return target not in self.feedforward


KIND = IA3Kind
