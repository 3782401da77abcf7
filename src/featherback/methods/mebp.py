"""MeBP (Song & Tang, EMNLP 2025 Industry): gradient checkpointing with an automatic backward pass.

The forward pass and the checkpoints are MeSP's. A block is recomputed whole, its output included, with every
intermediate that autodiff would save held until the block's backward has used it: normed inputs, q, k and v, attention
weights (heads x T x T), gate, up, their product and their gradients (T x F), and the block's weights dequantised. The
head's logits (n x V) and their gradient are held whole.

The arithmetic is MeSP's, tile by tile, so the two differ in memory and time and in no bit of the gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from featherback.backend.protocol import Array, Scratch
from featherback.layers.context import Context, keep_mapped
from featherback.layers.kept import Kept
from featherback.layers.linear import BlockWeights
from featherback.methods.base import Options, Sweep
from featherback.methods.mesp import Layer, MeSP
from featherback.methods.sinks import WeightSink


class MeBP(MeSP):
    """Exact gradients the way a checkpointing autodiff computes them: the baseline of MeSP's memory tables."""

    options_class = Options
    can_chunk = False
    can_train_weights = False

    def _backward_block(self, ctx: Context, layer: Layer, dy: Array, x: Array) -> None:
        block, w, kv = layer.block, _dense(ctx, layer.w), layer.kv
        ctx = replace(_held(ctx), release=keep_mapped)
        state = block.attention.forward(ctx, x, w, kv, again=True)
        m = block.middle(ctx, x, state, w)
        # Autodiff replays the whole block, its output included, though it is not used, and holds what that computes.
        # In float32 where MeSP computes it anew in float32: the bits are to be the same.
        mlp = block.mlp
        held = [name for name in mlp.intermediates if name != "mlp_out" or mlp.is_apart(w)]
        saved = Kept(
            {name: ctx.floats(name, ctx.tokens, mlp.intermediates[name].width) for name in held}
            | {"a": ctx.operands("a", ctx.tokens, mlp.intermediate_size)}
        )
        y = ctx.floats("y", *x.shape)
        ctx.ops.cast(m, y)
        mlp.forward(ctx, y, w, saved)
        mlp.backward(ctx, dy, m, w, saved)
        block.attention.backward(ctx, dy, x, state, w, kv)

    def _loss(self, sweep: Sweep, scale: float, sink: WeightSink | None) -> float:
        with sweep.ctx.frame():
            return super()._loss(replace(sweep, ctx=_held(sweep.ctx)), scale, sink)


class Held:
    """Scratch memory whose frames free nothing; the frame around them does."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    def take(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        return self._scratch.take(name, shape, dtype)

    @contextmanager
    def frame(self) -> Iterator[None]:
        yield


def _held(ctx: Context) -> Context:
    """A context whose frames free nothing."""
    return replace(ctx, scratch=Held(ctx.scratch), autodiff=True)


def _dense(ctx: Context, w: BlockWeights) -> BlockWeights:
    """The weights dequantised: to bf16 if the products would round them so anyway, else to float32."""
    dtype = ctx.backend.dense_type(ctx.compute)
    projections = {}
    for name, projection in w.projections.items():
        weight = ctx.scratch.take(f"{name}, dequantised", projection.weight.shape, dtype)
        ctx.ops.dequantize(projection.weight, weight)
        projections[name] = projection._replace(weight=ctx.ops.dense(weight))
    return BlockWeights(projections, w.vectors)


METHOD = MeBP
