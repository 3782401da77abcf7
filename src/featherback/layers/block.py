"""A decoder block: attention half, then gated half, each adding to the residual stream. docs/derivations/block.md.

The backward pass of a block is MeSP's schedule and stands in `methods/mesp.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from featherback.backend.protocol import Array
from featherback.layers.attention import Attention, AttentionState, KeyValues
from featherback.layers.context import Context
from featherback.layers.glu import GatedUnit
from featherback.layers.kept import NOTHING, Intermediate, Kept
from featherback.layers.linear import BlockWeights
from featherback.layers.rope import Rotary


def rotaries(blocks: Iterable[Block]) -> tuple[Rotary, ...]:
    """The rotations that blocks need tables of, each once."""
    return tuple({rotary: None for block in blocks for rotary in block.rotaries})


def bundles(blocks: Iterable[Block], outputs: bool = False) -> list[tuple[str, ...]]:
    """The intermediates that blocks may keep, each bundle once. `outputs`: the adapter needs those."""
    found = dict.fromkeys(bundle for block in blocks for bundle in block.bundles)
    return list(found | dict.fromkeys([("attn_out",), ("mlp_out",)] if outputs else []))


class Block:
    """m = x + attention(x);   y = m + mlp(m)"""

    def __init__(self, attention: Attention, mlp: GatedUnit) -> None:
        self.attention, self.mlp = attention, mlp
        self.projections = attention.projections | mlp.projections
        """Name -> (out, in)."""
        self.vectors = attention.vectors | mlp.vectors
        """Norms and biases: name -> (n,)."""
        hidden_size = mlp.projections["down_proj"][0]
        self.intermediates = attention.intermediates | {"m": Intermediate(hidden_size)} | mlp.intermediates
        """What may be kept from the forward to the backward pass, by name."""

        self.bundles = [*attention.bundles, ("m",), *mlp.bundles]
        """Those that are worth keeping, and which only together."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every weight, by name: norms, projections, biases."""
        norms: dict[str, tuple[int, ...]] = {
            name: shape for name, shape in self.vectors.items() if name.endswith("norm")
        }
        return norms | self.projections | self.vectors

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        """The rotations that it needs tables of."""
        return () if self.attention.rotary is None else (self.attention.rotary,)

    def forward(self, ctx: Context, x: Array, w: BlockWeights, kv: KeyValues, kept: Kept = NOTHING) -> None:
        """The residual stream x (T, D) goes through the block in place; what is to be kept is written."""
        with ctx.frame():
            state = self.attention.forward(ctx, x, w, kv, kept)
            self.attention.add_output(ctx, state, x, w)
        if (place := kept.rows("m", ctx.span)) is not None:
            ctx.ops.cast(x, place)
        self.mlp.forward(ctx, x, w, kept)

    def middle(self, ctx: Context, x: Array, state: AttentionState, w: BlockWeights, kept: Kept = NOTHING) -> Array:
        """m (T, D) from the block's input x: kept, or computed again with attention's output projection."""
        place = kept.rows("m", ctx.span)
        if place is not None:
            return place
        m = ctx.floats("m", *x.shape)
        ctx.ops.cast(x, m)
        self.attention.add_output(ctx, state, m, w)
        return m
