"""MeBP (Song & Tang, EMNLP 2025 Industry): gradient checkpointing with an automatic backward pass.

A block is recomputed from its checkpointed input with every intermediate that autodiff would save held until the
block's backward has used it: normed inputs, LoRA projections, rotated and unrotated q and k, attention weights
(heads x T x T), gate, up, their product and their gradients (T x F), the block's weights dequantised. The head's
logits (n x V) and their gradient are held whole.

The arithmetic is MeSP's, call by call and tile by tile, so that the two differ in memory and time and not in one bit
of the gradients; what MeBP does more is what autodiff does more (it recomputes the down projection too).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.backprop import attention, mlp
from featherback.backprop.block import BlockState
from featherback.backprop.context import Context
from featherback.backprop.linear import Projection
from featherback.backprop.loss import Softmax
from featherback.data.batch import IGNORE
from featherback.memory.ledger import Ledger, Sizes, begin_pass, layer_parameters, structured_pass
from featherback.methods.base import CheckpointedMethod
from featherback.models.model import LayerWeights
from featherback.models.names import TARGETS
from featherback.weights.types import TensorType

Array = NDArray[Any]
Float32 = NDArray[np.float32]
Projections = dict[str, Projection]


@dataclass(frozen=True)
class Saved:
    """A block's intermediates, as autodiff saves them."""

    n1: Array  # (T, D)
    q: Float32  # (T, Q), rotated
    k: Float32  # (T, K), rotated
    v: Float32  # (T, K)
    o: Array  # (T, Q)
    lse: Float32  # (heads, T)
    p: Float32  # (heads * T, T)
    m: Float32  # (T, D)
    n2: Array  # (T, D)
    gate: Float32  # (T, F)
    up: Float32  # (T, F)
    a: Array  # (T, F)
    h: dict[str, Array | None]  # (T, r) a target


class MeBP(CheckpointedMethod):
    """Exact gradients the way a checkpointing autodiff computes them: the baseline of MeSP's memory tables."""

    whole_head = True

    def _block_backward(
        self,
        ctx: Context,
        dy: Float32,
        x: Array,
        kept: BlockState | None,
        weights: LayerWeights,
        p: Projections,
    ) -> None:
        with _dequantised(ctx, p) as dense:
            saved = _forward(ctx, x, weights, dense)
            _mlp_backward(ctx, dy, weights.post_attention_layernorm, saved, dense)
            _attention_backward(ctx, dy, x, weights.input_layernorm, saved, dense)

    @classmethod
    def workspace(cls, sizes: Sizes) -> int:
        return workspace_of(sizes)

    @classmethod
    def products(cls, sizes: Sizes) -> tuple[float, float]:
        return 3, 2 + 2.5

    def _loss_and_gradient(self, ctx: Context, x: Float32, targets: NDArray[np.int32], scale: float) -> float:
        """x (T, D) becomes the gradient of scale * loss; logits and probabilities (n, V) are held whole."""
        rows = np.flatnonzero(targets != IGNORE)
        if not rows.size:
            x.fill(0)
            return 0.0
        config, stored, norm = ctx.config, self.model.lm_head, self.model.norm
        source, hidden = (
            ctx.floats(len(rows), config.hidden_size),
            ctx.operands(len(rows), config.hidden_size),
        )
        np.take(x, rows, axis=0, out=source, mode="clip")
        kernels.rms_norm(source, norm, config.rms_norm_eps, hidden)
        logits, p = ctx.floats(len(rows), config.vocab_size), ctx.operands(len(rows), config.vocab_size)
        wanted = targets[rows]
        softmax = Softmax.start(ctx, len(rows))
        dh = ctx.floats(len(rows), config.hidden_size)
        dh.fill(0)
        with self.weights.rows(stored, 0, stored.rows) as whole:
            head = kernels.matrix(whole)
            kernels.linear(hidden, head, logits)
            for first, last in mlp.tiles(config.vocab_size, ctx.vocab_tile):
                kernels.cross_entropy_tile(
                    logits[:, first:last], first, wanted,
                    softmax.reference, softmax.sum, softmax.target_logit, p[:, first:last], dh,
                )  # fmt: skip
                kernels.linear_backward(p[:, first:last], head.slice(rows=(first, last)), dh, accumulate=True)
        target_rows, gradient = ctx.floats(*source.shape), ctx.floats(*source.shape)
        self.weights.gather(stored, wanted, target_rows)
        total = softmax.finish(slice(0, len(rows)), target_rows, dh, scale)
        gradient.fill(0)
        kernels.rms_norm_backward(dh, source, norm, config.rms_norm_eps, gradient)
        x.fill(0)
        x[rows] = gradient
        return total


@contextmanager
def _dequantised(ctx: Context, p: Projections) -> Iterator[Projections]:
    """The same projections over dequantised weights, in the type the products read."""
    bf16 = ctx.operand != np.float32 and kernels.current().endswith("bf16")
    kind, dtype = (TensorType.BF16, np.uint16) if bf16 else (TensorType.F32, np.float32)
    with ctx.arena.frame():
        dense = {}
        for name in TARGETS:
            rows, cols = p[name].weight.shape
            weight = ctx.arena.take((rows, cols), dtype)
            kernels.dequantize(p[name].weight, weight)
            matrix = kernels.Matrix(weight.reshape(-1).view(np.uint8), int(kind), rows, cols)
            dense[name] = p[name]._replace(weight=matrix)
        yield dense


def _forward(ctx: Context, x: Array, weights: LayerWeights, p: Projections) -> Saved:
    """The block once more, from its input x (T, D), everything kept."""
    c, t = ctx.config, ctx.tokens
    n1, q, k, v = (
        ctx.operands(t, c.hidden_size),
        ctx.floats(t, c.q_size),
        ctx.floats(t, c.kv_size),
        ctx.floats(t, c.kv_size),
    )
    h: dict[str, Array | None] = {}
    kernels.rms_norm(x, weights.input_layernorm, c.rms_norm_eps, n1)
    for name, out in (("q_proj", q), ("k_proj", k), ("v_proj", v)):
        h[name] = p[name].down(ctx, n1)
        if name == "v_proj":
            p[name].forward(n1, h[name], out)
            continue
        unrotated = ctx.floats(*out.shape)
        p[name].forward(n1, h[name], unrotated)
        kernels.rope(unrotated, ctx.cos, ctx.sin, out, c.head_dim, c.rope_interleaved)
    o, lse = ctx.operands(t, c.q_size), ctx.floats(c.num_attention_heads, t)
    probabilities = ctx.floats(c.num_attention_heads * t, t)
    kernels.attention(
        q, k, v, o, lse, c.num_attention_heads, c.num_key_value_heads, ctx.cu_seqlens, p=probabilities
    )
    m, n2 = ctx.floats(t, c.hidden_size), ctx.operands(t, c.hidden_size)
    kernels.cast(x, m)
    h["o_proj"] = p["o_proj"].down(ctx, o)
    p["o_proj"].forward(o, h["o_proj"], m, accumulate=True)
    kernels.rms_norm(m, weights.post_attention_layernorm, c.rms_norm_eps, n2)
    gate, up, a = (
        ctx.floats(t, c.intermediate_size),
        ctx.floats(t, c.intermediate_size),
        ctx.operands(t, c.intermediate_size),
    )
    for name, out in (("gate_proj", gate), ("up_proj", up)):
        h[name] = p[name].down(ctx, n2)
        p[name].forward(n2, h[name], out)
    kernels.glu(gate, up, a, "silu")
    h["down_proj"] = _h_down(ctx, a, p)
    # Autodiff replays the whole block, its output included, though nobody reads it.
    y = ctx.floats(t, c.hidden_size)
    p["down_proj"].forward(a, h["down_proj"], y)
    return Saved(n1, q, k, v, o, lse, probabilities, m, n2, gate, up, a, h)


def _h_down(ctx: Context, a: Array, p: Projections) -> Array | None:
    """s a A^T, summed tile by tile as MeSP sums it."""
    total = mlp.accumulator(ctx, p["down_proj"])
    for f0, f1 in mlp.tiles(ctx.config.intermediate_size, ctx.mlp_tile):
        mlp.add_down(a[:, f0:f1], mlp.tile(p, f0, f1)[2].lora, total)
    return mlp.finished(ctx, total)


def _mlp_backward(ctx: Context, dy: Float32, norm: Float32, saved: Saved, p: Projections) -> None:
    """dy (T, D), the gradient of y = m + mlp(m), becomes that of m in place."""
    c, down = ctx.config, p["down_proj"]
    with ctx.arena.frame():
        dy_operand = ctx.operands(*dy.shape)
        kernels.cast(dy, dy_operand)
        dh_down = down.backward_down(ctx, dy_operand)
        da = ctx.floats(*saved.gate.shape)
        down.backward_input(dy_operand, dh_down, da)
        down.backward_factors(saved.a, saved.h["down_proj"], dy_operand, dh_down)
        dgate, dup = ctx.operands(*saved.gate.shape), ctx.operands(*saved.gate.shape)
        kernels.glu_backward(da, saved.gate, saved.up, dgate, dup, "silu")
        dn = ctx.floats(*dy.shape)
        dh = {name: mlp.accumulator(ctx, p[name]) for name in ("gate_proj", "up_proj")}
        for f0, f1 in mlp.tiles(c.intermediate_size, ctx.mlp_tile):
            parts = dict(zip(("gate_proj", "up_proj"), mlp.tile(p, f0, f1)))
            for name, gradient in (("gate_proj", dgate[:, f0:f1]), ("up_proj", dup[:, f0:f1])):
                first = f0 == 0 and name == "gate_proj"
                mlp.backward_outputs(parts[name], saved.h[name], gradient, dh[name], dn, accumulate=not first)
        for name in ("gate_proj", "up_proj"):
            mlp.finish_input(ctx, p[name], dh[name], saved.n2, dn)
        kernels.rms_norm_backward(dn, saved.m, norm, c.rms_norm_eps, dy)


def _attention_backward(
    ctx: Context, dm: Float32, x: Array, norm: Float32, saved: Saved, p: Projections
) -> None:
    """dm (T, D) becomes the gradient of the block's input x in place."""
    c = ctx.config
    with ctx.arena.frame():
        operand, do = ctx.operands(*dm.shape), ctx.floats(*saved.q.shape)
        kernels.cast(dm, operand)
        dh = p["o_proj"].backward_down(ctx, operand)
        p["o_proj"].backward_factors(saved.o, saved.h["o_proj"], operand, dh)
        p["o_proj"].backward_input(operand, dh, do)
        delta = ctx.floats(c.num_attention_heads, ctx.tokens)
        dq, dk, dv = ctx.floats(*saved.q.shape), ctx.floats(*saved.k.shape), ctx.floats(*saved.v.shape)
        kernels.attention_backward(
            do, saved.q, saved.k, saved.v, saved.o, saved.lse, delta, dq, dk, dv,
            c.num_attention_heads, c.num_key_value_heads, ctx.cu_seqlens, p=saved.p,
        )  # fmt: skip
        dn = ctx.floats(*dm.shape)
        attention.backward_inputs(ctx, (dq, dk, dv), saved.n1, saved.h, p, dn)
        kernels.rms_norm_backward(dn, x, norm, c.rms_norm_eps, dm)


def workspace_of(s: Sizes) -> int:
    """Bytes of MeBP's arena: the structured pass for evaluation, or its own backward phases."""
    ledger = Ledger()
    t, c, plan = s.plan.tokens, s.config, s.plan
    with ledger.frame():
        begin_pass(ledger, s)
        with ledger.frame():
            ledger.take("rows of the residual stream", t, c.hidden_size)
            ledger.take("hidden", t, c.hidden_size, itemsize=s.operand)
            ledger.take("logits", t, c.vocab_size)
            ledger.take("p", t, c.vocab_size, itemsize=s.operand)
            for name in ("softmax reference", "softmax sum", "target logits"):
                ledger.take(name, t)
            for name in ("dhidden", "target rows", "gradient rows"):
                ledger.take(name, t, c.hidden_size)
        if s.rank:
            with ledger.frame():
                _block_entries(ledger, s)
    return max(ledger.peak()[0], structured_pass(Sizes(c, replace(plan, keep_h=True), 0, ())).peak()[0])


def _block_entries(ledger: Ledger, s: Sizes) -> None:
    """One block's backward: its intermediates, then the gradients of the MLP half and of the attention half."""
    t, c = s.plan.tokens, s.config
    d, f = c.hidden_size, c.intermediate_size
    shapes = {
        "q_proj": (c.q_size, d),
        "k_proj": (c.kv_size, d),
        "v_proj": (c.kv_size, d),
        "o_proj": (d, c.q_size),
    }
    shapes |= {"gate_proj": (f, d), "up_proj": (f, d), "down_proj": (d, f)}
    dense = s.operand if kernels.current().endswith("bf16") else 4
    ledger.take("checkpoint", t, d, itemsize=s.operand)
    ledger.take("LoRA gradients of a layer", s.adapter)
    layer_parameters(ledger, s)
    for name, shape in shapes.items():
        ledger.take(f"{name}, dequantised", *shape, itemsize=dense)
    ledger.take("n1", t, d, itemsize=s.operand)
    for name, width in (
        ("q", c.q_size),
        ("k", c.kv_size),
        ("v", c.kv_size),
        ("q unrotated", c.q_size),
        ("k unrotated", c.kv_size),
    ):
        ledger.take(name, t, width)
    ledger.take("o", t, c.q_size, itemsize=s.operand)
    ledger.take("log-sum-exp", c.num_attention_heads, t)
    ledger.take("attention weights", c.num_attention_heads * t, t)
    ledger.take("m", t, d)
    ledger.take("n2", t, d, itemsize=s.operand)
    ledger.take("gate", t, f)
    ledger.take("up", t, f)
    ledger.take("a", t, f, itemsize=s.operand)
    for target in s.targets:
        ledger.take(f"h of {target}", t, s.rank, itemsize=s.operand)
    if s.operand != 4:
        _t_by_r(ledger, s, "sum for h of down_proj", 4)
    ledger.take("y", t, d)
    with ledger.frame():
        ledger.take("dy, operand", t, d, itemsize=s.operand)
        _t_by_r(ledger, s, "dh of down_proj", s.operand)
        ledger.take("da", t, f)
        ledger.take("dgate", t, f, itemsize=s.operand)
        ledger.take("dup", t, f, itemsize=s.operand)
        ledger.take("dn2", t, d)
        for target in ("gate_proj", "up_proj"):
            _t_by_r(ledger, s, f"dh of {target}", 4)
        if s.operand != 4:
            for target in ("gate_proj", "up_proj"):
                _t_by_r(ledger, s, f"dh of {target}", s.operand)
    with ledger.frame():
        ledger.take("dm, operand", t, d, itemsize=s.operand)
        ledger.take("do", t, c.q_size)
        _t_by_r(ledger, s, "dh of o_proj", s.operand)
        ledger.take("delta", c.num_attention_heads, t)
        for name, width in (("dq", c.q_size), ("dk", c.kv_size), ("dv", c.kv_size)):
            ledger.take(name, t, width)
        ledger.take("dn1", t, d)
        for target, width in (("q_proj", c.q_size), ("k_proj", c.kv_size), ("v_proj", c.kv_size)):
            with ledger.frame():
                ledger.take(f"d{target[0]}, operand", t, width, itemsize=s.operand)
                _t_by_r(ledger, s, f"dh of {target}", s.operand)


def _t_by_r(ledger: Ledger, s: Sizes, name: str, itemsize: int) -> None:
    if name.split()[-1] in s.targets:
        ledger.take(name, s.plan.tokens, s.rank, itemsize=itemsize)


METHOD = MeBP
