"""The attention half of a block.

Forward:   n = rms(x) g;   q, k, v = rope(lin(n));   o = attention(q, k, v);   m = x + lin_o(o)
Only o and the log-sum-exp of each score row are kept; see docs/derivations/attention.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.backprop.context import Context
from featherback.backprop.linear import Projection

Array = NDArray[Any]
Float32 = NDArray[np.float32]
Projections = dict[str, Projection]


@dataclass(frozen=True)
class AttentionState:
    """What the backward pass needs of the recomputed forward pass.

    q, k and v stay float32: rounding a score's factors costs more accuracy than any other rounding of a bf16 pass.
    """

    q: Float32  # (T, Q), rotated
    k: Float32  # (T, K), rotated
    v: Float32  # (T, K)
    out: Array  # (T, Q), an operand
    lse: Float32  # (heads, T)
    h: dict[str, Array | None]  # LoRA projections of the normed input, kept if the context says so


def forward(
    ctx: Context, x: Array, norm: Float32, p: Projections, store: Context | None = None
) -> AttentionState:
    """Everything up to the output projection, from the block's input x (T, D), float32 or operand.

    The state lies in the arena of `store`, by default the current frame.
    """
    store = store or ctx
    c = ctx.config
    q, k, v = (
        store.floats(ctx.tokens, c.q_size),
        store.floats(ctx.tokens, c.kv_size),
        store.floats(ctx.tokens, c.kv_size),
    )
    out = store.operands(ctx.tokens, c.q_size)
    lse = store.floats(c.num_attention_heads, ctx.tokens)
    h = {name: store.operands(ctx.tokens, len(p[name].lora.a)) if p[name].lora else None for name in _INPUTS}  # type: ignore[union-attr]
    with ctx.arena.frame():
        n = ctx.operands(ctx.tokens, c.hidden_size)
        kernels.rms_norm(x, norm, c.rms_norm_eps, n)
        for name, projected in zip(_INPUTS, (q, k, v)):
            _down_into(p[name], n, h[name])
            p[name].forward(n, h[name], projected)
            if name != "v_proj":
                kernels.rope(projected, ctx.cos, ctx.sin, projected, c.head_dim, c.rope_interleaved)
    kernels.attention(q, k, v, out, lse, c.num_attention_heads, c.num_key_value_heads, ctx.cu_seqlens)
    return AttentionState(q, k, v, out, lse, h)


def backward(
    ctx: Context, dm: Float32, x: Array, norm: Float32, state: AttentionState, p: Projections
) -> None:
    """dm (T, D), the gradient of m = x + lin_o(o), becomes the gradient of x in place."""
    c = ctx.config
    with ctx.arena.frame():
        dq, dk, dv = (
            ctx.floats(ctx.tokens, c.q_size),
            ctx.floats(ctx.tokens, c.kv_size),
            ctx.floats(ctx.tokens, c.kv_size),
        )
        with ctx.arena.frame():
            do = ctx.floats(ctx.tokens, c.q_size)
            _output_backward(ctx, dm, state, p["o_proj"], do)
            delta = ctx.floats(c.num_attention_heads, ctx.tokens)
            # o = attention(q, k, v)
            kernels.attention_backward(
                do, state.q, state.k, state.v, state.out, state.lse, delta, dq, dk, dv,
                c.num_attention_heads, c.num_key_value_heads, ctx.cu_seqlens,
            )  # fmt: skip
        # n = rms(x) g, recomputed: it is cheaper than keeping it through the MLP
        n = ctx.operands(ctx.tokens, c.hidden_size)
        kernels.rms_norm(x, norm, c.rms_norm_eps, n)
        dn = ctx.floats(ctx.tokens, c.hidden_size)
        backward_inputs(ctx, (dq, dk, dv), n, state.h if ctx.keep_h else None, p, dn)
        kernels.rms_norm_backward(dn, x, norm, c.rms_norm_eps, dm)


def backward_inputs(
    ctx: Context,
    gradients: tuple[Float32, Float32, Float32],
    n: Array,
    kept: dict[str, Array | None] | None,
    p: Projections,
    dn: Float32,
) -> None:
    """dn (T, D) from dq, dk, dv of the rotated q, k and of v; `kept`: the projections' h, recomputed if None."""
    c = ctx.config
    for position, (name, gradient) in enumerate(zip(_INPUTS, gradients)):
        with ctx.arena.frame():
            operand = ctx.operands(*gradient.shape)
            if name == "v_proj":
                kernels.cast(gradient, operand)
            else:  # q = rope(lin_q(n))
                kernels.rope(
                    gradient, ctx.cos, ctx.sin, operand, c.head_dim, c.rope_interleaved, inverse=True
                )
            h = p[name].down(ctx, n) if kept is None else kept[name]
            dh = p[name].backward_down(ctx, operand)
            p[name].backward_factors(n, h, operand, dh)
            p[name].backward_input(operand, dh, dn, accumulate=position > 0)


_INPUTS = ("q_proj", "k_proj", "v_proj")


def _down_into(projection: Projection, x: Array, h: Array | None) -> None:
    if projection.lora is not None and h is not None:
        kernels.lora_in(x, projection.lora.a, h, projection.lora.scale)


def _output_backward(
    ctx: Context, dm: Float32, state: AttentionState, projection: Projection, do: Float32
) -> None:
    """do (T, Q) from dm, with m = x + lin_o(o)."""
    with ctx.arena.frame():
        operand = ctx.operands(*dm.shape)
        kernels.cast(dm, operand)
        h = projection.down(ctx, state.out)
        dh = projection.backward_down(ctx, operand)
        projection.backward_factors(state.out, h, operand, dh)
        projection.backward_input(operand, dh, do)
