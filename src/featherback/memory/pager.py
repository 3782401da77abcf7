"""Which of the model's pages are resident: the layer at work, the next one on its way, the last one gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.models.model import LayerWeights, Model
from featherback.weights.matrix import Matrix

FOLIO = 2 << 20
"""Bytes: the largest piece of the page cache that Linux maps at one touch."""
SCATTERED_ROWS = 4
"""Rows of the embedding looked up between two drops."""


class WeightSource(Protocol):
    """Hands out a model's weights while they are needed: `WeightPager` and `stream.WeightStream` fit."""

    model: Model

    def layer(self, index: int, then: int | None = None) -> AbstractContextManager[LayerWeights]:
        """The weights of layer `index`; `then` is the layer that will be needed next."""

    def rows(self, stored: Matrix, first: int, last: int) -> AbstractContextManager[Matrix]:
        """Rows [first, last) of a matrix whose rows are visited in order; the next ones are fetched meanwhile."""

    def gather(self, stored: Matrix, ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """out (n, D) = rows `ids` of the matrix, dequantised."""

    def close(self) -> None:
        """Let go of buffers and files."""


class WeightPager:
    """Weights as the memory map has them. `drop`: pages are unmapped after use, and the next ones read ahead."""

    def __init__(self, model: Model, drop: bool) -> None:
        self.model, self._drop = model, drop
        self._layers = [model.layer(i) for i in range(model.config.num_hidden_layers)]

    @contextmanager
    def layer(self, index: int, then: int | None = None) -> Iterator[LayerWeights]:
        weights = self._layers[index]
        if then is not None and 0 <= then < len(self._layers):
            for matrix in self._layers[then].matrices().values():
                self._expect(matrix.data)
        try:
            yield weights
        finally:
            for matrix in weights.matrices().values():
                self._drop_bytes(matrix.data)

    @contextmanager
    def rows(self, stored: Matrix, first: int, last: int) -> Iterator[Matrix]:
        part = stored.rows_between(first, last)
        following = min(stored.rows, 2 * last - first)
        if following > last:
            self._expect(stored.rows_between(last, following).data)
        try:
            yield part
        finally:
            self._drop_bytes(part.data)

    def gather(self, stored: Matrix, ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """A few rows at a time: each brings its neighbourhood of pages along."""
        handle = kernels.matrix(stored)
        step = SCATTERED_ROWS if self._drop else max(len(ids), 1)
        for first in range(0, len(ids), step):
            kernels.gather_rows(handle, ids[first : first + step], out[first : first + step])
            self._drop_bytes(stored.data)

    def close(self) -> None:
        """Nothing is held."""

    def _expect(self, data: NDArray[np.uint8]) -> None:
        if self._drop:
            kernels.read_ahead(data)

    def _drop_bytes(self, data: NDArray[np.uint8]) -> None:
        """Drop a range, and what the system mapped around it: touching a page can map a whole FOLIO of its file."""
        if not self._drop:
            return
        file = data.base
        if isinstance(file, np.ndarray) and file.dtype == np.uint8 and file.ndim == 1:
            start = data.__array_interface__["data"][0] - file.__array_interface__["data"][0]
            data = file[max(0, start - FOLIO) : start + data.nbytes + FOLIO]
        kernels.drop_pages(data)
