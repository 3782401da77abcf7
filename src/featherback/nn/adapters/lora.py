"""LoRA (Hu et al., 2021, arXiv 2106.09685): y = x W^T + h B^T with h = s x A^T, s = alpha / rank.

A is (rank, in), B (out, rank). B is stored transposed, so that the same kernels read both factors along rows.

Backward, from dy (T, out):   dh = s dy B (T, r);   dA = dh^T x;   dB^T = h^T dy;   dx += dh A

A stack of E experts has a pair for each: A (E, rank, in), B (E, out, rank); see `stacked.py`.

With dropout, M x replaces x, s / (1 - p) replaces s, and dx += M (dh A). See docs/derivations/linear.md and dropout.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from featherback.core.noise import Key, uniform
from featherback.engine.backend.protocol import Array
from featherback.errors import FeatherbackError
from featherback.nn.adapters.base import AtProjection, Float32, Kind, Part, Setup, Shape, Values
from featherback.nn.adapters.dropout import Mask
from featherback.nn.adapters.stacked import Stacked, by_expert, stacked_change
from featherback.nn.context import Context


@dataclass(slots=True)
class LoRAAtProjection(AtProjection):
    """A (r, in) and B^T (r, out), float32, and the arrays that dA and dB^T are added to (None: not wanted).

    All are views of the layer's flat vectors, which are owned by `methods.assembly.layer_weights` and the gradient
    sink.
    """

    name: str
    a: Array
    b: Array  # B^T
    scale: float  # s; with dropout s / (1 - p)
    da: Array | None = None
    db: Array | None = None
    mask: Mask | None = None  # dropout of A's input

    @property
    def width(self) -> int:  # type: ignore[override]
        return len(self.a)

    @property
    def reading(self) -> tuple[Array, float] | None:  # type: ignore[override]
        return (self.a, self.scale) if self.mask is None else None

    @property
    def fused_a(self) -> Array | None:
        return self.a if self.mask is None else None

    def outputs(self, first: int, last: int) -> LoRAAtProjection:
        db = None if self.db is None else self.db[:, first:last]
        return LoRAAtProjection(self.name, self.a, self.b[:, first:last], self.scale, self.da, db, self.mask)

    def inputs(self, first: int, last: int) -> LoRAAtProjection:
        da = None if self.da is None else self.da[:, first:last]
        mask = None if self.mask is None else self.mask.inputs(first)
        return LoRAAtProjection(self.name, self.a[:, first:last], self.b, self.scale, da, self.db, mask)

    def read(
        self, ctx: Context, x: Array, h: Array | None = None, dh: Array | None = None, *, accumulate: bool = False
    ) -> None:
        """h (T, r) (+)= s x A^T; dA (r, in) += dh^T x. With dropout x is M x."""
        if self.mask is None:
            self._read(ctx, x, h, dh, accumulate)
            return
        with ctx.frame():
            dropped = ctx.operands(f"input of {self.name}, dropped", *x.shape)
            self.mask.drop(ctx, x, dropped)
            self._read(ctx, dropped, h, dh, accumulate)

    def _read(self, ctx: Context, x: Array, h: Array | None, dh: Array | None, accumulate: bool) -> None:
        if h is not None:
            ctx.ops.lora_in(x, self.a, h, self.scale, accumulate=accumulate)
        if dh is not None and self.da is not None:
            ctx.ops.lora_gradient(dh, x, self.da, accumulate=True)

    def read_backward(self, ctx: Context, dy: Array, dh: Array, *, accumulate: bool = False) -> None:
        """h b = h B^T was added to the product, and h = s x A^T, so dh (T, r) (+)= s dy B."""
        ctx.ops.lora_in(dy, self.b, dh, self.scale, accumulate=accumulate)

    def add_to_input(self, ctx: Context, dh: Array, dx: Array) -> None:
        """h = s x A^T, so dx (T, in) += dh A, with the s in dh. With dropout dx += M (dh A)."""
        if self.mask is None:
            ctx.ops.linear_backward(dh, ctx.ops.dense(self.a), dx, accumulate=True)
            return
        with ctx.frame():
            a = ctx.floats(f"A of {self.name}, columns of a tile", *self.a.shape)  # a product needs contiguous rows
            ctx.ops.cast(self.a, a)
            through = ctx.floats(f"gradient of the input of {self.name}, not dropped", *dx.shape)
            ctx.ops.linear_backward(dh, ctx.ops.dense(a), through)
            self.mask.drop(ctx, through, dx, accumulate=True)

    def collect_b(self, ctx: Context, h: Array | None, dy: Array) -> None:
        """y = x W^T + h B^T, so dB^T (r, out) += h^T dy."""
        if self.db is not None:
            ctx.ops.lora_gradient(h, dy, self.db, accumulate=True)


@dataclass(frozen=True, kw_only=True)
class LoRAKind(Kind):
    """LoRA. s = alpha / rank, or alpha / sqrt(rank) with `rslora`.

    `dropout` is the probability of dropping an input.
    """

    title: ClassVar[str] = "LoRA"
    is_low_rank: ClassVar[bool] = True
    own_options: ClassVar[Collection[str]] = ("rank", "alpha", "rslora", "dora", "lora_dropout", "loraplus_ratio")

    rank: int = 8
    alpha: float = 16.0
    rslora: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise FeatherbackError(f"The rank is {self.rank}; it must be at least 1.")
        if not isinstance(self.rank, (int, np.integer)):
            raise FeatherbackError(f"The rank is {self.rank}; it must be a whole number.")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise FeatherbackError(f"Alpha is {self.alpha}; it must be a positive number.")
        object.__setattr__(self, "alpha", float(self.alpha))

    @property
    def width(self) -> int:
        return self.rank

    @property
    def draws(self) -> bool:
        return self.dropout > 0

    @property
    def adapts_experts(self) -> bool:
        return not self.dropout  # PEFT has none there: it adds the change to the weights

    @property
    def scale(self) -> float:
        """s: alpha / rank, or alpha / sqrt(rank) if rank-stabilised (Kalajdzievski, 2023, arXiv 2312.03732)."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    @property
    def growth(self) -> float:
        """The scale as a multiple of alpha / rank: sqrt(rank) with `rslora`, else 1."""
        return self.scale / replace(self, rslora=False).scale

    def describe(self) -> str:
        return f"rank {self.rank}, alpha {self.alpha:g}{' (rsLoRA)' if self.rslora else ''}"

    def options(self) -> dict[str, Any]:
        return {"adapter": "lora", "rank": self.rank, "alpha": self.alpha, "rslora": self.rslora, "dora": False}

    def parts(self, target: str, shape: Shape) -> dict[str, Part]:
        *stack, outputs, inputs = shape
        a, b, stored = ((*stack, *each) for each in ((self.rank, inputs), (self.rank, outputs), (outputs, self.rank)))
        return {
            "A": Part("A", a, a, by_input=not stack),
            "B": Part("B^T", b, stored, transposed=True, by_output=not stack),
        }

    def initialise(self, values: Values, fixed: Float32 | None, key: Key) -> None:
        """Write A Kaiming-uniform with a = sqrt(5), as nn.Linear and PEFT do.

        B stays zero, so that nothing changes yet.
        """
        a = values["A"]
        for expert, own in enumerate(by_expert(a)):
            place = key if a.ndim == 2 else (*key, expert)
            own[...] = (2 * uniform(place, own.size) - 1).reshape(own.shape) * own.shape[1] ** -0.5

    def rate(self, slot: str, ratio: float) -> float:
        """Return 1 for A, and `ratio` for B (LoRA+) and any other tensor, as in PEFT."""
        return 1.0 if slot == "A" else ratio

    def attach(self, setup: Setup) -> AtProjection:
        if len(setup.values["A"].shape) == 3:
            return Stacked.of(setup, self.attach_pair)
        return self.attach_pair(setup)

    def attach_pair(self, setup: Setup) -> LoRAAtProjection:
        """Return the pair A, B at one matrix."""
        mask = None
        if setup.draw is not None and self.dropout:
            mask = Mask.of(self.dropout, setup.draw, setup.layer, setup.name)
        scale = self.scale if mask is None else self.scale * mask.gain
        da, db = setup.gradients.get("A"), setup.gradients.get("B^T")
        return LoRAAtProjection(setup.name, setup.values["A"], setup.values["B^T"], scale, da, db, mask)

    def change_of(self, before: Float32, values: Values, first: int, last: int) -> Float32:
        """Return s B A for rows [first, last) of W."""
        if values["A"].ndim == 3:
            return stacked_change(self.change_of, before, values, first, last)
        change: Float32 = np.ascontiguousarray(values["B^T"][:, first:last].T) @ values["A"]
        change *= np.float32(self.scale)
        return change


KIND = LoRAKind
