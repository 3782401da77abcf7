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

from featherback.engine.backend.protocol import Array, Scratch
from featherback.methods.base import Options
from featherback.methods.mesp import MeSP
from featherback.methods.sweep import Layer, RoundTrip
from featherback.nn.context import Context, keep_mapped
from featherback.nn.linear import BlockWeights


class MeBP(MeSP):
    """Exact gradients the way a checkpointing autodiff computes them: the baseline of MeSP's memory tables."""

    options_class = Options  # no intermediates are kept by plan
    can_chunk = False
    can_train_weights = False

    def block_backward(self, ctx: Context, layer: Layer, dy: Array, x: Array) -> None:
        held = replace(_held(ctx), release=keep_mapped)
        super().block_backward(held, layer._replace(w=_dense(ctx, layer.w)), dy, x)

    def loss_gradient(self, trip: RoundTrip, scale: float) -> float:
        ctx = trip.sweep.ctx
        with ctx.frame():
            return super().loss_gradient(replace(trip, sweep=replace(trip.sweep, ctx=_held(ctx))), scale)


class Held:
    """Scratch memory whose frames free nothing. The frame around it, of the scratch memory itself, frees all."""

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
    dtype = ctx.backend.dense_type
    projections = {}
    for name, projection in w.projections.items():
        weight = ctx.scratch.take(f"{name}, dequantised", projection.weight.shape, dtype)
        ctx.ops.dequantize(projection.weight, weight)
        projections[name] = projection._replace(weight=ctx.ops.dense(weight))
    return BlockWeights(projections, w.vectors)


METHOD = MeBP
