"""DoRA (Liu et al., 2024, arXiv 2402.09353): LoRA with a trained length m_i for each row i of the adapted weight.

Forward:   y = c (x W^T + h B^T) + bias,   c = m / n,   n_i = ||W_i + s B_i A||,   h = s x A^T
Backward:  du = c dy replaces dy in LoRA's gradients;   dm = sum over tokens of dy (y - bias) / m

W_i and B_i are rows. c, m and n (out,) hold one value per output. m is trained. n is treated as a constant in the
gradient, as in the paper's section 4.3 and in PEFT. See docs/derivations/dora.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from featherback.core.naming import argument
from featherback.core.noise import Key
from featherback.engine.backend.protocol import Array, Matrix
from featherback.errors import FeatherbackError
from featherback.nn.adapters.base import BlockRows, Float32, Part, Setup, Shape, Values
from featherback.nn.adapters.lora import LoRAAtProjection, LoRAKind
from featherback.nn.context import Context


@dataclass(slots=True)
class DoRAAtProjection(LoRAAtProjection):
    """LoRA's factors, m (out,), c = m / n (out,), and the array that dm is added to (None: not wanted).

    A tile of inputs has only LoRA's factors, because m and c apply to the whole sum.
    """

    m: Array = field(kw_only=True)
    c: Array = field(kw_only=True)
    dm: Array | None = field(kw_only=True)
    needs_output: ClassVar[bool] = True  # type: ignore[misc]
    adds_bias: ClassVar[bool] = True  # type: ignore[misc]

    def outputs(self, first: int, last: int) -> DoRAAtProjection:
        db = None if self.db is None else self.db[:, first:last]
        dm = None if self.dm is None else self.dm[first:last]
        return DoRAAtProjection(
            self.name, self.a, self.b[:, first:last], self.scale, self.da, db, self.mask,
            m=self.m[first:last], c=self.c[first:last], dm=dm,
        )  # fmt: skip

    def finish(self, ctx: Context, out: Array, bias: Array | None) -> None:
        """y (T, out) = c u + bias, in place; u = x W^T + h B^T."""
        ctx.ops.scale_columns(out, self.c, out, bias=bias)

    def collect(self, ctx: Context, dy: Array, y: Array | None, bias: Array | None) -> None:
        """y = c u + bias and c = m / n, so dm (out,) += sum over tokens of dy (y - bias) / m."""
        if self.dm is not None:
            ctx.ops.column_dots(dy, y, self.dm, less=bias, over=self.m)

    def scale_gradient(self, ctx: Context, dy: Array) -> None:
        """y = c u + bias, so du (T, out) = c dy, in place."""
        ctx.ops.scale_columns(dy, self.c, dy)


@dataclass(frozen=True, kw_only=True)
class DoRAKind(LoRAKind):
    """LoRA, with a trained length m_i for each row of W."""

    title: ClassVar[str] = "DoRA"
    is_low_rank: ClassVar[bool] = False
    needs_output: ClassVar[bool] = True

    @property
    def adapts_experts(self) -> bool:
        return False

    def describe(self) -> str:
        return f"DoRA of {LoRAKind.describe(self)}"

    def options(self) -> dict[str, Any]:
        return LoRAKind.options(self) | {"dora": True}

    def parts(self, target: str, shape: Shape) -> dict[str, Part]:
        m = Part("m", shape[:1], shape[:1], by_output=True)
        return {**LoRAKind.parts(self, target, shape), "m": m}

    def fixed(self, shape: Shape) -> int:
        """Return the number of outputs: one fixed value ||W_i||^2 for each."""
        return shape[0]

    def prepared(self, shape: Shape) -> int:
        """Return the number of outputs: one prepared value c_i for each."""
        return shape[0]

    def measure(self, rows: BlockRows, out: Float32, target: str, layer: int) -> None:
        """Write ||W_i||^2. Raises FeatherbackError for a row of zeros, which has no direction."""
        for first, last, values in rows:
            np.square(values, out=values)
            out[first:last] = values.sum(axis=1, dtype=np.float64)
        if not out.all():
            raise FeatherbackError(
                f"{target} of layer {layer} has a row of zeros, which DoRA cannot normalise. Remove "
                f"{argument('dora')}, or remove {target} from {argument('targets')}."
            )

    def prepare(self, ctx: Context, weight: Matrix, setup: Setup, fixed: Array) -> None:
        """c = m / n with n_i^2 = ||W_i||^2 + 2 s B_i . P_i, where P (out, r) = (W + s/2 B A) A^T.

        P^T is the projection's forward pass with the rows of A as tokens and s / 2 as scale. It is computed tile by
        tile of outputs, and each tile is freed at once.
        """
        lora, m, c = self.attach_pair(setup), setup.values["m"], setup.prepared
        a, rank = lora.a, len(lora.a)
        with ctx.frame():
            tokens, h = ctx.operands("A as tokens", *a.shape), ctx.operands("s/2 A A^T", rank, rank)
            ctx.ops.cast(a, tokens)
            ctx.ops.lora_in(tokens, a, h, lora.scale / 2)
            for first, last in ctx.tiles(len(c), ctx.mlp_tile):
                rows, b = weight.slice(rows=(first, last)), lora.b[:, first:last]
                with ctx.frame():
                    p, dots = ctx.floats("P^T", rank, last - first), ctx.floats("B . P", last - first)
                    ctx.ops.linear(tokens, rows, p, h=h, b=b)
                    ctx.ops.fill(dots, 0)
                    ctx.ops.column_dots(b, p, dots)
                    ctx.ops.over_norm(m[first:last], fixed[first:last], dots, 2 * lora.scale, c[first:last])
                ctx.release(rows)

    def initialise(self, values: Values, fixed: Float32 | None, key: Key) -> None:
        """Write LoRA's initial values and m_i = ||W_i||, so that training starts at the base model."""
        LoRAKind.initialise(self, values, fixed, key)
        assert fixed is not None
        np.sqrt(fixed, out=values["m"])

    def attach(self, setup: Setup) -> DoRAAtProjection:
        inner = self.attach_pair(setup)
        return DoRAAtProjection(
            inner.name, inner.a, inner.b, inner.scale, inner.da, inner.db, inner.mask,
            m=setup.values["m"], c=setup.prepared, dm=setup.gradients.get("m"),
        )  # fmt: skip

    def change_of(self, before: Float32, values: Values, first: int, last: int) -> Float32:
        """Return c (W + s B A) - W for these rows."""
        adapted = before + LoRAKind.change_of(self, before, values, first, last)
        lengths = np.sqrt(np.square(adapted).sum(axis=1, dtype=np.float64)).astype(np.float32)
        adapted *= (values["m"][first:last] / lengths)[:, None]
        adapted -= before
        return adapted


KIND = DoRAKind
