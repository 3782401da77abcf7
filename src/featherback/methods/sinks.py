"""Sinks: interfaces that receive gradients as soon as they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from featherback.core.noise import Key
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array, Int32, Operations
from featherback.nn.context import Context, Perturbations
from featherback.nn.linear import LayerSink
from featherback.nn.loss import HeadSink


class GradientSink(Protocol):
    """Receives the gradients of an adapter. `engine.host.paged.PagedArray` is one: it sums them over batches."""

    def gather(self, layer: int, room: Array, on: Device) -> AbstractContextManager[Array]:
        """Provide `room` (size,) with the layer's sums so far. Add gradients to it; at the end the sink stores it."""


class WeightSink(HeadSink, Protocol):
    """Receives the gradients of the model's own weights, one by one. `methods.whole.gradients` reads them in tiles."""

    def layer(self, index: int) -> LayerSink:
        """Return the sink of one layer."""

    def perturbation(self, ops: Operations, key: Key, factor: float) -> Perturbations:
        """Return the perturbation `factor` z of all trained weights. z ~ N(0, I) depends only on the key."""

    def along(self, ctx: Context, slopes: Sequence[tuple[Key, float]]) -> None:
        """Use the sum of slope z over the directions (key, slope) as the gradient of all weights."""

    def embedding(self, ctx: Context, ids: Int32, dx: Array) -> None:
        """Receive dx (T, D), float32, the gradient of the embedding's rows `ids` (T,). This is the last call."""
