"""A gated delta net whose a and b are one product, as in Qwen3-Next.

Forward:   [b|a] of each K head = lin_ba(n);   the rest as in `nn.delta_net`
Backward:  d[b|a] of each K head = db and da of its V heads

With R = Hv / Hk, a K head has R columns of b, then R of a. V heads of one K head are neighbours. Files of GGUF have
q, k, v and z in two matrices, and transformers in one, so an adapter of the one would be two of the other. Neither is
adapted.
"""

from __future__ import annotations

from typing import Any

from featherback.engine.backend.protocol import Array
from featherback.nn.context import Context
from featherback.nn.delta_net import OUT, QKV, A, B, DeltaNet, DeltaState, Inward, Z
from featherback.nn.linear import BlockWeights

BA = "ba_proj"


class PairedGates(DeltaNet):
    """`DeltaNet` with one projection for a and b."""

    frozen = (QKV, Z)

    def __init__(self, *, hidden_size: int, **others: Any) -> None:
        super().__init__(hidden_size=hidden_size, **others)
        self.outputs = {QKV: self.size, Z: self.v_size, BA: 2 * self.v_heads}
        inward = {name: (size, hidden_size) for name, size in self.outputs.items()}
        self.projections = {**inward, OUT: self.projections[OUT]}
        self.grouped_rows, self.grouped_columns, self.tiled = {}, {}, False

    def _project(self, ctx: Context, x: Array, w: BlockWeights, before: Array, names: tuple[str, ...]) -> list[Array]:
        wanted = tuple(name for name in names if name not in (A, B))
        *found, both = super()._project(ctx, x, w, before, (*wanted, BA))
        a, b = (ctx.floats(name, ctx.tokens, self.v_heads) for name in "ab")
        for part, product in zip(self._halves(both), (b, a)):
            ctx.ops.cast(part, self._by_k_head(product))
        return [*found, a, b]

    def _inward(self, ctx: Context, state: DeltaState, dp: Array, dz: Array, da: Array, db: Array) -> list[Inward]:
        own = super()._inward(ctx, state, dp, dz, da, db)[:2]
        both, gradient = (take("[b|a]", ctx.tokens, 2 * self.v_heads) for take in (ctx.floats, ctx.operands))
        for whole, b, a in ((both, state.b, state.a), (gradient, db, da)):
            for part, product in zip(self._halves(whole), (b, a)):
                ctx.ops.cast(self._by_k_head(product), part)
        return [*own, (BA, both, gradient)]

    def _halves(self, both: Array) -> tuple[Array, Array]:
        """Return b and a, (T Hk, R) each, of [b|a] (T, 2 Hv)."""
        shared = self.v_heads // self.k_heads
        heads = both.reshape(both.shape[0] * self.k_heads, 2 * shared)
        return heads[:, :shared], heads[:, shared:]

    def _by_k_head(self, x: Array) -> Array:
        """Return x (T, Hv) as (T Hk, R)."""
        return x.reshape(x.shape[0] * self.k_heads, self.v_heads // self.k_heads)
