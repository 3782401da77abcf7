"""What takes gradients as soon as they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from featherback.core.noise import Key
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array, Int32, Operations
from featherback.nn.context import Context, Moves
from featherback.nn.linear import LayerSink
from featherback.nn.loss import HeadSink


class GradientSink(Protocol):
    """Takes those of an adapter. `engine.host.paged.PagedArray` adds them up."""

    def gather(self, layer: int, room: Array, on: Device) -> AbstractContextManager[Array]:
        """`room` (size,), the layer's flat vector: gradients are added to it inside, and belong to the sink after."""


class WeightSink(HeadSink, Protocol):
    """Takes those of the model's own weights, one weight at a time. `methods.whole.gradients` reads them in tiles."""

    def layer(self, index: int) -> LayerSink:
        """What takes those of a layer."""

    def moved(self, ops: Operations, key: Key, factor: float) -> Moves:
        """factor z for all weights that are trained, z ~ N(0, I) depending on the key alone."""

    def along(self, ctx: Context, slopes: Sequence[tuple[Key, float]]) -> None:
        """The gradient as it is along some directions (key, slope): the sum of slope z, in place of all else here."""

    def embedding(self, ctx: Context, ids: Int32, dx: Array) -> None:
        """Of the rows `ids` (T,) of the embedding, as they entered the first block: dx (T, D), float32. Comes last."""
