"""The resources of a method: a device, scratch memory, the weights, and stores in RAM or in files."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.engine import backend
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array, Backend, Scratch, TokenStore
from featherback.engine.formats.matrix import LayerWeights
from featherback.engine.formats.matrix import Matrix as StoredMatrix
from featherback.engine.host.checkpoints import Checkpoints
from featherback.engine.host.pager import WeightPager
from featherback.engine.host.stream import WeightStream
from featherback.methods.memory.plan import Plan, Weights
from featherback.models.model import Model
from featherback.nn.block import noted

FLOAT = np.dtype(np.float32)


class WeightSource(Protocol):
    """Provides a model's weights while they are needed."""

    def layer(self, index: int, then: int | None = None) -> AbstractContextManager[LayerWeights]:
        """Provide the weights of layer `index`. `then`: the layer needed next."""

    def rows(self, stored: StoredMatrix, first: int, last: int) -> AbstractContextManager[StoredMatrix]:
        """Provide rows [first, last) of a matrix that is read in order. The next rows are fetched meanwhile."""

    def gather(self, stored: StoredMatrix, ids: NDArray[np.int32], out: Array) -> None:
        """Copy rows `ids` of the matrix, dequantised, to `out` (n, D)."""

    def release(self, matrix: Any) -> None:
        """Release a weight of the layer in use, or some of its rows: it is no longer needed."""

    def release_expert(self, matrix: Any) -> None:
        """Release rows of a stack of experts of the layer in use. Experts are read and released one by one."""

    def expect(self, name: str, first: int, last: int) -> None:
        """Note that rows [first, last) of a stack of the layer in use are needed next."""

    def close(self) -> None:
        """Free buffers and close files."""


@dataclass(frozen=True)
class Resources(Device):
    """Everything that a method uses. `scratch` holds arrays that are freed within a phase of a step.

    `methods.memory.dry_run` has a version without memory.
    """

    kept: Scratch  # intermediates kept from the forward to the backward pass
    weights: WeightSource
    checkpoints: TokenStore | None  # block inputs, one slot per layer with a backward pass; None: no backward pass
    residual: TokenStore | None  # the residual stream, then its gradient, if tokens pass in chunks
    noted: TokenStore | None  # what the layer in use notes for each chunk (`Branch.noted`); None: nothing

    def release(self) -> None:
        """Free the memory of everything but the weights between two steps, until it is used again."""
        for each in (self.scratch, self.kept, self.checkpoints, self.residual, self.noted):
            if each is not None:
                each.release()

    def close(self) -> None:
        """Close the files."""
        self.weights.close()
        for store in (self.checkpoints, self.residual, self.noted):
            if store is not None:
                store.close()


def source(model: Model, device: Backend, weights: Weights, rows: int, changing: bool = False) -> WeightSource:
    """Return a model's weights for a device, read as `weights` says. `rows`: most rows of the head in use at a time."""
    own: WeightSource | None = device.weights(model, weights, rows, changing)
    if own is not None:
        return own
    return WeightStream(model, device, rows) if weights == "streamed" else WeightPager(model, device, weights, changing)


def resources(
    model: Model, plan: Plan, scratch: int, kept: int, *, checkpoints: int, folder: Path | None, changing: bool = False
) -> Resources:
    """Allocate the resources of a plan on this machine. `scratch`, `kept`: bytes. `folder`: where files are created.

    `checkpoints`: number of block inputs to store for a backward pass. `changing`: the weights themselves are trained.
    """
    device, config = backend.of(plan.compute), model.config
    place = None if plan.checkpoints == "ram" else folder
    sizes, per_chunk = (plan.tokens, config.hidden_size), noted(model.blocks)
    return Resources(
        device,
        device.arena(scratch),
        device.arena(kept),
        source(model, device, plan.weights, plan.vocab_tile, changing),
        Checkpoints(device, checkpoints, *sizes, device.operand, place) if checkpoints else None,
        Checkpoints(device, 1, *sizes, FLOAT, place) if plan.chunked else None,
        Checkpoints(device, 1, plan.chunks * per_chunk.rows, per_chunk.width, FLOAT, place)
        if plan.chunked and checkpoints and per_chunk is not None and per_chunk.rows is not None
        else None,
    )
