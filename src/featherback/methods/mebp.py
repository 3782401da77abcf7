"""MeBP (Song & Tang, EMNLP 2025 Industry): gradient checkpointing with an automatic backward pass.

The forward pass and the checkpoints are MeSP's. The backward pass recomputes a whole block, including its output, and
holds every intermediate that autodiff would save until the block is done: normed inputs, q, k and v, attention weights
(heads x T x T), gate, up, their product and their gradients (T x F), and the block's dequantised weights, except those
of experts. The head's logits (n x V) and their gradient are also held whole.

The arithmetic is MeSP's, tile by tile: gradients are equal to the last bit, and only memory and time differ.
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
    """Exact gradients, computed as autodiff with checkpoints does. The baseline of MeSP's memory tables."""

    options_class = Options  # plans keep no intermediates
    can_chunk = False
    can_train_weights = False

    def block_backward(self, ctx: Context, layer: Layer, dy: Array, x: Array) -> None:
        held = replace(_held(ctx), release=keep_mapped)
        super().block_backward(held, layer._replace(w=_dense(ctx, layer)), dy, x)

    def loss_gradient(self, trip: RoundTrip, scale: float) -> float:
        ctx = trip.sweep.ctx
        with ctx.frame():
            return super().loss_gradient(replace(trip, sweep=replace(trip.sweep, ctx=_held(ctx))), scale)


class HoldingScratch:
    """Scratch memory in which the end of a frame frees nothing.

    The enclosing frame of the real scratch memory frees everything.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    def take(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        return self._scratch.take(name, shape, dtype)

    @contextmanager
    def frame(self) -> Iterator[None]:
        yield

    def release(self) -> None:
        self._scratch.release()


def _held(ctx: Context) -> Context:
    """Return a context in which the end of a frame frees nothing."""
    return replace(ctx, scratch=HoldingScratch(ctx.scratch), autodiff=True)


def _dense(ctx: Context, layer: Layer) -> BlockWeights:
    """Return the dequantised weights: in bf16 if the products round them to it anyway, else in float32.

    Stacks of experts stay as they are stored. A product for a few tokens does not round weights to bf16, and an expert
    can have few.
    """
    dtype = ctx.backend.dense_type
    projections = dict(layer.w.projections)
    for name, projection in layer.w.projections.items():
        if name in layer.block.stacks:
            continue
        weight = ctx.scratch.take(f"{name}, dequantised", projection.weight.shape, dtype)
        ctx.ops.dequantize(projection.weight, weight)
        ctx.release(projection.weight)  # the stored weight is not needed again
        projections[name] = projection._replace(weight=ctx.ops.dense(weight))
    return layer.w._replace(projections=projections)


METHOD = MeBP
