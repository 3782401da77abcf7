"""Takes each layer's gradients as soon as they are computed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from featherback.backend.protocol import Array


class GradientSink(Protocol):
    """`host.paged.PagedArray` adds them up; an optimiser that updates during the backward pass would use them up."""

    def gather(self, layer: int, room: Array) -> AbstractContextManager[Array]:
        """`room` (size,), the layer's flat vector: gradients are added to it inside, and belong to the sink after."""
