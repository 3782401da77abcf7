"""Attention with an output gate: the product of q holds, head by head, the query and as many gates.

Forward:   [q|c] = lin_q(n), per head;   q = rope(norm(q));   o = attention(q, k, v);   x += lin_o(o sigmoid(c))
Backward:  da = gradient of o sigmoid(c), from lin_o;   do = da sigmoid(c),   dc = da o sigmoid'(c)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from featherback.engine.backend.protocol import Array
from featherback.nn.attention import Attention, AttentionState
from featherback.nn.context import Context
from featherback.nn.linear import BlockWeights


class GatedAttention(Attention):
    """`Attention` with an output gate and norms of the heads of q and k. The product of q is (T, 2 Q)."""

    q_parts = 2

    def __init__(self, **attention: Any) -> None:
        super().__init__(qk_norm="heads", **attention)

    def _halves(self, product: Array) -> tuple[Array, Array]:
        """Return queries and gates, (T heads, d) each, of q's product (T, 2 Q)."""
        d = self.head_dim
        heads = product.reshape(product.shape[0] * self.heads, 2 * d)
        return heads[:, :d], heads[:, d:]

    def _by_head(self, x: Array) -> Array:
        """Return x (T, Q) as (T heads, d)."""
        return x.reshape(x.shape[0] * self.heads, self.head_dim)

    def _gated(self, ctx: Context, o: Array, q_raw: Array) -> Array:
        """Return o sigmoid(c), (T, Q), an operand of the current frame."""
        gated = ctx.operands("o, gated", *o.shape)
        ctx.ops.gate(self._halves(q_raw)[1], self._by_head(o), self._by_head(gated), "sigmoid")
        return gated

    def _project_output(
        self, ctx: Context, o: Array, q_raw: Array, w: BlockWeights, out: Array, *, accumulate: bool = False
    ) -> None:
        with ctx.frame():
            super()._project_output(ctx, self._gated(ctx, o, q_raw), q_raw, w, out, accumulate=accumulate)

    def _project_output_backward(
        self, ctx: Context, state: AttentionState, dy: Array, w: BlockWeights, do: Array, beside: Array
    ) -> None:
        with ctx.frame():
            gated = replace(state, o=self._gated(ctx, state.o, state.q_raw))
            super()._project_output_backward(ctx, gated, dy, w, do, beside)
        of_o, gates = self._by_head(do), self._halves(state.q_raw)[1]
        ctx.ops.gate_backward(of_o, gates, self._by_head(state.o), self._by_head(beside), of_o, "sigmoid")

    def _norm_and_rotate(self, ctx: Context, letter: str, w: BlockWeights, raw: Array, out: Array) -> None:
        if letter == "q":
            ctx.ops.cast(self._halves(raw)[0], self._by_head(out))
            raw = out
        super()._norm_and_rotate(ctx, letter, w, raw, out)

    def _norm_and_rotate_backward(
        self, ctx: Context, letter: str, w: BlockWeights, gradient: Array, raw: Array, dy: Array
    ) -> None:
        """As in `Attention`; for q, dy and raw are (T, 2 Q), and `gradient` (2 T, Q) has the gates' below q's."""
        if letter != "q":
            super()._norm_and_rotate_backward(ctx, letter, w, gradient, raw, dy)
            return
        tokens = len(raw)
        (queries, _), (to_queries, to_gates) = self._halves(raw), self._halves(dy)
        ctx.ops.cast(self._by_head(gradient[tokens:]), to_gates)
        with ctx.frame():
            own = ctx.floats("q before its norm", tokens, self.q_size)
            of_own = ctx.operands("dq, operand", tokens, self.q_size)
            ctx.ops.cast(queries, self._by_head(own))
            super()._norm_and_rotate_backward(ctx, letter, w, gradient[:tokens], own, of_own)
            ctx.ops.cast(self._by_head(of_own), to_queries)
