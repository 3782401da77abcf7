"""Which of the model's pages are resident: the layer at work, the next one on its way, the last one gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.models.model import LayerWeights, Model
from featherback.weights.matrix import Matrix

FOLIO = 2 << 20
"""Bytes: the largest piece of the page cache that Linux maps at one touch."""
SCATTERED_ROWS = 4
"""Rows of the embedding looked up between two drops."""


class WeightPager:
    """Hands out a model's weights. `drop`: unmap pages after use; `read_ahead`: fetch the next layer meanwhile."""

    def __init__(self, model: Model, drop: bool, read_ahead: bool) -> None:
        self.model, self._drop, self._read_ahead = model, drop, read_ahead
        self._layers = [model.layer(i) for i in range(model.config.num_hidden_layers)]

    @contextmanager
    def layer(self, index: int, then: int | None = None) -> Iterator[LayerWeights]:
        """The weights of layer `index`; `then` is the layer that will be needed next."""
        weights = self._layers[index]
        if then is not None and 0 <= then < len(self._layers):
            self.expect(*self._layers[then].matrices().values())
        try:
            yield weights
        finally:
            self.drop(*weights.matrices().values())

    def expect(self, *matrices: Matrix) -> None:
        """These matrices are needed soon."""
        if self._read_ahead:
            for matrix in matrices:
                kernels.read_ahead(matrix.data)

    def drop(self, *matrices: Matrix) -> None:
        """These matrices are not needed for a while."""
        if self._drop:
            for matrix in matrices:
                self._drop_bytes(matrix.data)

    def gather(self, matrix: Matrix, ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """out (n, D) = rows `ids` of the matrix, a few at a time: each brings its neighbourhood of pages along."""
        handle = kernels.matrix(matrix)
        step = SCATTERED_ROWS if self._drop else max(len(ids), 1)
        for first in range(0, len(ids), step):
            kernels.gather_rows(handle, ids[first : first + step], out[first : first + step])
            self.drop(matrix)

    def drop_rows(self, matrix: Matrix, first: int, last: int) -> None:
        """Rows [first, last) of this matrix are not needed for a while."""
        if self._drop:
            self._drop_bytes(matrix.data[first * matrix.row_bytes : last * matrix.row_bytes])

    @staticmethod
    def _drop_bytes(data: NDArray[np.uint8]) -> None:
        """Drop a range, and what the system mapped around it: touching a page can map a whole FOLIO of its file."""
        file = data.base
        if isinstance(file, np.ndarray) and file.dtype == np.uint8 and file.ndim == 1:
            start = data.__array_interface__["data"][0] - file.__array_interface__["data"][0]
            data = file[max(0, start - FOLIO) : start + data.nbytes + FOLIO]
        kernels.drop_pages(data)
