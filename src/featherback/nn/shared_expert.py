"""The shared expert of a mixture of experts: a gated unit that every token passes, with or without a gate of its own.

Forward:   u = down(act(gate(n)) * up(n));   y += u, or y += sig(t) u with t = n . s
Backward:  du = sig(t) dy;   dt = (1 - sig(t)) da . a per token, where da is the gradient of a from du;   dn += dt s

u is linear in a, so du . u = da . a, and dt = dy . u sig'(t) needs no product with W_d again.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from featherback.engine.backend.protocol import Array
from featherback.nn.context import Context
from featherback.nn.gated import Gated, GatedWeights
from featherback.nn.linear import BlockWeights, row_ranges, stored_shapes
from featherback.nn.softmax import placed

GATE = "shared_gate"


class SharedExpert:
    """A gated unit of width `size`. `gated`: its output is multiplied by the sigmoid of n . s, with s (D,) trained.

    `fused`: the one projection that holds the rows of gate and up.
    """

    def __init__(
        self, hidden_size: int, size: int, *, activation: str = "silu", gated: bool = False, fused: str | None = None
    ) -> None:
        self.gated_unit, self.gated = Gated(size, activation), gated
        self.parts = row_ranges({"gate": size, "up": size}, fused)
        self.projections = stored_shapes(self.parts, hidden_size) | {"down_proj": (hidden_size, size)}
        self.vectors: Mapping[str, tuple[int, ...]] = {GATE: (hidden_size,)} if gated else {}

    def add_output(self, ctx: Context, n: Array, y: Array, w: BlockWeights) -> None:
        """y (T, D), float32, += the output. n (T, D) is an operand."""
        weights = self._weights(w)
        with ctx.frame():
            if not self.gated and not weights.down.needs_output:
                self.gated_unit.forward(ctx, n, weights, y, accumulate=True)
                return
            out = ctx.floats("output of the shared expert", *y.shape)
            self.gated_unit.forward(ctx, n, weights, out)
            if self.gated:
                ctx.ops.scale_rows(out, placed(ctx, self._gates(ctx, n, w), len(n)))
            ctx.ops.scale_columns(out, None, y, accumulate=True)

    def backward(self, ctx: Context, dy: Array, n: Array, dn: Array, w: BlockWeights) -> None:
        """dn (T, D), float32, += the gradient of n, from dy (T, D), float32, the gradient of the output."""
        weights = self._weights(w)
        with ctx.frame():
            dots = ctx.floats("da . a", len(n))
            gates: np.ndarray | None = None
            if self.gated:
                ctx.ops.fill(dots, 0)
                gates = self._gates(ctx, n, w)
                du = ctx.floats("gradient of the shared expert's output", *dy.shape)
                ctx.ops.cast(dy, du)
                ctx.ops.scale_rows(du, placed(ctx, gates, len(n)))
                dy = du
            d_out = ctx.operands("gradient of down(a), operand", *dy.shape)
            ctx.ops.cast(dy, d_out)
            weights.down.scale_gradient(ctx, d_out)
            u = ctx.floats("output of the shared expert", *dy.shape) if weights.down.needs_output else None

            self.gated_unit.backward(
                ctx, n, d_out, dn, weights, accumulate=True, resummed=u,
                dots=dots if self.gated else None,
                finished=lambda: weights.down.collect(ctx, dy, u),
            )  # fmt: skip
            if gates is not None:
                with ctx.backend.host(dots) as found:
                    dt = placed(ctx, (1 - gates) * found, len(n)).reshape(len(n), 1)
                operand = ctx.operands("dt, operand", len(n), 1)
                ctx.ops.cast(dt, operand)
                ctx.ops.linear_backward(operand, self._gate_row(ctx, w), dn, accumulate=True)

    def _gates(self, ctx: Context, n: Array, w: BlockWeights) -> np.ndarray:
        """Return sig(n . s) (T,), float32, on the host."""
        with ctx.frame():
            t = ctx.floats("n . s", len(n), 1)
            ctx.ops.linear(n, self._gate_row(ctx, w), t)
            with ctx.backend.host(t) as found, np.errstate(over="ignore"):
                gates: np.ndarray = 1 / (1 + np.exp(-found[:, 0]))
        return gates

    def _gate_row(self, ctx: Context, w: BlockWeights) -> Array:
        """Return s as a matrix (1, D)."""
        (size,) = w.vectors[GATE].shape
        row = ctx.floats("s", 1, size)
        ctx.ops.cast(w.vectors[GATE].reshape(1, size), row)
        return ctx.ops.dense(row)

    def _weights(self, w: BlockWeights) -> GatedWeights:
        return GatedWeights.of(w, self.parts, "down_proj")
