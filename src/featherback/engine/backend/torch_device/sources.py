"""Where a model's weights are: all on the device, or in the host's memory, from which a block at a time is copied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from featherback.engine.backend.torch_device.arrays import Array, Limits, row_numbers
from featherback.engine.backend.torch_device.products import dequantize
from featherback.engine.backend.torch_device.weights import Weight
from featherback.engine.formats.matrix import LayerWeights, Matrix
from featherback.engine.host.reading import Weights

ALIGNMENT = 256
Place = tuple[Path | None, int]
Piece = Sequence[tuple[Matrix, Tensor]]
"""Matrices with their bytes in the host's memory."""


def _place(matrix: Matrix) -> Place:
    return matrix.file, matrix.offset


class _Source:
    """The bytes of all matrices, by their place in the file, on the device `where`."""

    def __init__(self, model: Weights, device: torch.device, where: torch.device, limits: Limits) -> None:
        self._device, self._limits = device, limits
        self._layers = [model.layer(index) for index in range(len(model.blocks))]
        stored = [*model.tables, *(matrix for layer in self._layers for matrix in layer.matrices.values())]
        self._bytes = {_place(matrix): _copied(matrix, where, pinned=where != device) for matrix in stored}

    def gather(self, stored: Matrix, ids: NDArray[np.int32], out: Array) -> None:
        """out (n, D) = rows `ids`, dequantised."""
        kept = self._bytes[_place(stored)].view(stored.rows, -1)
        rows = kept[row_numbers(ids, kept.device)].to(self._device)
        dequantize(Weight.of(stored.type, stored.cols, rows, self._limits), out.tensor)

    def release(self, matrix: Weight) -> None:
        """Do nothing: a weight is free when its context ends."""

    release_expert = release

    def expect(self, name: str, first: int, last: int) -> None:
        """Do nothing: nothing is read by experts."""

    def close(self) -> None:
        """Free the weights."""
        self._bytes.clear()


class Resident(_Source):
    """All weights stay in the device's memory."""

    def __init__(self, model: Weights, device: torch.device, limits: Limits) -> None:
        super().__init__(model, device, device, limits)

    @contextmanager
    def layer(self, index: int, then: int | None = None) -> Iterator[LayerWeights]:
        """Yield the weights of a layer."""
        layer = self._layers[index]
        yield _with_weights(layer, {name: self._weight(matrix) for name, matrix in layer.matrices.items()})

    @contextmanager
    def rows(self, stored: Matrix, first: int, last: int) -> Iterator[Weight]:
        """Yield rows [first, last) of the head."""
        yield self._weight(stored).slice(rows=(first, last))

    def _weight(self, matrix: Matrix) -> Weight:
        return Weight.of(matrix.type, matrix.cols, self._bytes[_place(matrix)], self._limits)


class Streamed(_Source):
    """Weights in the host's memory. Two buffers on the device alternate: one is in use while the other is filled.

    `rows`: the most rows of the head that are requested at once.
    """

    def __init__(self, model: Weights, device: torch.device, rows: int, limits: Limits) -> None:
        super().__init__(model, device, torch.device("cpu"), limits)
        head = model.tables[-1]
        sizes = [sum(map(_aligned, (each.nbytes for each in layer.matrices.values()))) for layer in self._layers]
        size = max(*sizes, _aligned(min(rows, head.rows) * head.row_bytes))
        self._buffers = [_Buffer(size, device, limits) for _ in range(2)]

    @contextmanager
    def layer(self, index: int, then: int | None = None) -> Iterator[LayerWeights]:
        """Yield the weights of a layer in a buffer, and start copying layer `then`."""
        layer = self._layers[index]
        following = self._piece(then) if then is not None and 0 <= then < len(self._layers) else None
        with self._buffered(self._piece(index), following) as weights:
            yield _with_weights(layer, dict(zip(layer.matrices, weights, strict=True)))

    @contextmanager
    def rows(self, stored: Matrix, first: int, last: int) -> Iterator[Weight]:
        """Yield rows [first, last) of the head in a buffer, and start copying the rows after them."""
        end = min(stored.rows, 2 * last - first)
        following = self._part(stored, last, end) if end > last else None
        with self._buffered(self._part(stored, first, last), following) as (weight,):
            yield weight

    @contextmanager
    def _buffered(self, piece: Piece, following: Piece | None) -> Iterator[list[Weight]]:
        used = next((each for each in self._buffers if each.holds(piece)), self._buffers[0])
        other = self._buffers[self._buffers[0] is used]
        if not used.holds(piece):
            used.fill(piece)
        if following is not None and not other.holds(following):
            other.fill(following)
        yield used.take()

    def _piece(self, index: int) -> Piece:
        return [(matrix, self._bytes[_place(matrix)]) for matrix in self._layers[index].matrices.values()]

    def _part(self, stored: Matrix, first: int, last: int) -> Piece:
        data = self._bytes[_place(stored)].view(stored.rows, -1)[first:last].view(-1)
        return [(stored.rows_between(first, last), data)]


class _Buffer:
    """Memory of `size` bytes on the device. On a GPU, copies to it run beside the computation."""

    def __init__(self, size: int, device: torch.device, limits: Limits) -> None:
        self._limits = limits
        self._memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._content: list[Place] = []
        self._weights: list[Weight] = []
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def holds(self, piece: Piece) -> bool:
        """Return whether the buffer was last filled with this piece."""
        return self._content == [_place(matrix) for matrix, _ in piece]

    def fill(self, piece: Piece) -> None:
        """Start copying, once all that was computed so far, such as with the previous content, is done."""
        self._content, self._weights, at = [_place(matrix) for matrix, _ in piece], [], 0
        if self._copies is not None:
            self._copies.wait_stream(torch.cuda.current_stream())
        with nullcontext() if self._copies is None else torch.cuda.stream(self._copies):
            for matrix, data in piece:
                target = self._memory[at : at + len(data)]
                target.copy_(data, non_blocking=True)
                self._weights.append(Weight.of(matrix.type, matrix.cols, target, self._limits))
                at += _aligned(len(data))

    def take(self) -> list[Weight]:
        """Return the weights. What is computed next waits until they are copied."""
        if self._copies is not None:
            torch.cuda.current_stream().wait_stream(self._copies)
        return self._weights


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _copied(matrix: Matrix, where: torch.device, pinned: bool) -> Tensor:
    """Return the bytes of a stored matrix, in the host's memory in pages from which a GPU can copy by itself."""
    pinned = pinned and torch.cuda.is_available()
    copy = torch.empty(matrix.nbytes, dtype=torch.uint8, device=where, pin_memory=pinned)
    copy.copy_(torch.from_numpy(np.array(matrix.data)))
    return copy


def _with_weights(layer: LayerWeights, weights: Mapping[str, Any]) -> LayerWeights:
    return replace(layer, matrices=weights)
