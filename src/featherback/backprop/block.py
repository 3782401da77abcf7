"""A decoder block: attention half, then MLP half, each adding to the residual stream. docs/derivations/block.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.backprop import attention, mlp
from featherback.backprop.context import Context
from featherback.backprop.linear import Projection
from featherback.models.model import LayerWeights

Array = NDArray[Any]
Float32 = NDArray[np.float32]
Projections = dict[str, Projection]


@dataclass(frozen=True)
class BlockState:
    """What the backward pass needs of a block's forward pass, where memory is plentiful enough to keep it."""

    attention: attention.AttentionState
    m: Float32  # (T, D), between the halves
    mlp: mlp.MLPState

    @classmethod
    def forward(
        cls, ctx: Context, store: Context, x: Float32, weights: LayerWeights, p: Projections
    ) -> BlockState:
        """As `forward` below; the state lies in the arena of `store`."""
        state = attention.forward(ctx, x, weights.input_layernorm, p, store)
        _add_output(ctx, state, x, p)
        m, halves = store.floats(*x.shape), mlp.MLPState.take(store)
        kernels.cast(x, m)
        mlp.forward(ctx, x, weights.post_attention_layernorm, p, halves)
        return cls(state, m, halves)


def forward(ctx: Context, x: Float32, weights: LayerWeights, p: Projections) -> None:
    """The residual stream x (T, D) goes through the block in place."""
    attention_half(ctx, x, x, weights, p)
    mlp.forward(ctx, x, weights.post_attention_layernorm, p)


def attention_half(ctx: Context, x: Array, residual: Float32, weights: LayerWeights, p: Projections) -> None:
    """residual (T, D) += lin_o(attention(x))."""
    with ctx.arena.frame():
        state = attention.forward(ctx, x, weights.input_layernorm, p)
        _add_output(ctx, state, residual, p)


def backward(
    ctx: Context, dy: Float32, x: Array, weights: LayerWeights, p: Projections, kept: BlockState | None = None
) -> None:
    """dy (T, D), the gradient of the block's output, becomes that of its input x in place; LoRA gradients accumulate.

    x (T, D), float32 or operand, is the checkpoint; what is not kept is recomputed, but never the down projection.
    """
    norms = weights.input_layernorm, weights.post_attention_layernorm
    if kept is not None:
        mlp.backward(ctx, dy, kept.m, norms[1], p, kept.mlp)
        attention.backward(ctx, dy, x, norms[0], kept.attention, p)
        return
    with ctx.arena.frame():
        state = attention.forward(ctx, x, norms[0], p)
        with ctx.arena.frame():
            m = ctx.floats(ctx.tokens, ctx.config.hidden_size)
            kernels.cast(x, m)
            _add_output(ctx, state, m, p)
            mlp.backward(ctx, dy, m, norms[1], p)
        attention.backward(ctx, dy, x, norms[0], state, p)


def _add_output(ctx: Context, state: attention.AttentionState, residual: Float32, p: Projections) -> None:
    """residual += o W_o^T + LoRA."""
    with ctx.arena.frame():
        p["o_proj"].forward(state.out, p["o_proj"].down(ctx, state.out), residual, accumulate=True)
