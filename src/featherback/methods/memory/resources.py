"""What a method works with: a device, its scratch memory, the weights, and what waits in RAM or in files."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.engine import backend
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array, Backend, Scratch
from featherback.engine.formats.matrix import LayerWeights
from featherback.engine.formats.matrix import Matrix as StoredMatrix
from featherback.engine.host.checkpoints import Checkpoints
from featherback.engine.host.pager import WeightPager
from featherback.engine.host.stream import WeightStream
from featherback.methods.memory.plan import Plan, Weights
from featherback.models.model import Model


class WeightSource(Protocol):
    """Hands out a model's weights while they are needed."""

    def layer(self, index: int, then: int | None = None) -> AbstractContextManager[LayerWeights]:
        """The weights of layer `index`; `then` is the layer that will be needed next."""

    def rows(self, stored: StoredMatrix, first: int, last: int) -> AbstractContextManager[StoredMatrix]:
        """Rows [first, last) of a matrix whose rows are visited in order; the next ones are fetched meanwhile."""

    def gather(self, stored: StoredMatrix, ids: NDArray[np.int32], out: Array) -> None:
        """out (n, D) = rows `ids` of the matrix, dequantised."""

    def release(self, matrix: Any) -> None:
        """A weight of the layer in use, or some of its rows, is no longer needed."""

    def close(self) -> None:
        """Release buffers and close files."""


class TokenStore(Protocol):
    """Rows per token that wait outside the scratch memory, an array (T, D) per slot."""

    def save(self, slot: int, x: Array, first: int, scratch: Array) -> None:
        """Keep x (n, D) as the rows from `first` on; `scratch` (n, D) of the store's type may be overwritten."""

    def load(self, slot: int, out: Array, first: int) -> None:
        """out (n, D) of the store's type = the rows from `first` on."""

    def close(self) -> None:
        """Give the space back."""


@dataclass(frozen=True)
class Resources(Device):
    """All that a method may use; `methods.memory.dry_run` has the same without memory. `scratch` holds what dies within
    a phase of a step."""

    kept: Scratch  # intermediates that stay from the forward to the backward pass
    weights: WeightSource
    checkpoints: TokenStore | None  # block inputs, a slot per layer that it comes to; None: there is no backward pass
    residual: TokenStore | None  # the residual stream, then its gradient, where tokens pass in chunks

    def close(self) -> None:
        """Close files."""
        self.weights.close()
        for store in (self.checkpoints, self.residual):
            if store is not None:
                store.close()


def source(model: Model, device: Backend, weights: Weights, rows: int, changing: bool = False) -> WeightSource:
    """A model's weights for a device, as a plan or a layout has them; `rows`: most of the head's that are in use."""
    return WeightStream(model, device, rows) if weights == "streamed" else WeightPager(model, device, weights, changing)


def resources(
    model: Model, plan: Plan, scratch: int, kept: int, *, checkpoints: int, folder: Path | None, changing: bool = False
) -> Resources:
    """The resources of a plan on this machine: `scratch` and `kept` in bytes; `folder` for what it keeps in files.

    `checkpoints`: how many block inputs wait for a backward pass. `changing`: the weights are trained themselves.
    """
    device, config = backend.of(plan.compute), model.config
    place = None if plan.checkpoints == "ram" else folder
    sizes = (plan.tokens, config.hidden_size)
    return Resources(
        device,
        device.arena(scratch),
        device.arena(kept),
        source(model, device, plan.weights, plan.vocab_tile, changing),
        Checkpoints(device, checkpoints, *sizes, device.operand, place) if checkpoints else None,
        Checkpoints(device, 1, *sizes, np.dtype(np.float32), place) if plan.chunked else None,
    )
