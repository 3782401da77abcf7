"""Arrays laid out to catch kernels that read or write outside of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAD, MARGIN = 3, 5  # elements before the first row (off any alignment) and between rows


def _poison(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind == "f":
        return np.full(size, np.nan, dtype)
    if dtype == np.uint16:  # bf16's NaN
        return np.full(size, 0x7FC1, dtype)
    return np.full(size, np.iinfo(dtype).max, dtype)


class Guarded:
    """A (rows, cols) or (n,) array inside a buffer of NaN: before it, between its rows, and after it."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        rows, cols = shape if len(shape) == 2 else (1, shape[0])
        size = LEAD + rows * (cols + MARGIN)
        self._buffer = _poison(size, np.dtype(dtype))
        self._outside = np.ones(size, bool)
        self._place(self._outside, shape)[...] = False
        self._before = self._buffer.copy()
        self.view = self._place(self._buffer, shape)

    @classmethod
    def holding(cls, values: NDArray[Any]) -> Guarded:
        guarded = cls(values.shape, values.dtype)
        guarded.view[...] = values
        guarded._before = guarded._buffer.copy()
        return guarded

    @staticmethod
    def _place(buffer: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        rows, cols = shape if len(shape) == 2 else (1, shape[0])
        grid = buffer[LEAD:].reshape(rows, cols + MARGIN)[:, :cols]
        return grid if len(shape) == 2 else grid[0]

    def surroundings_intact(self) -> bool:
        """No byte outside of the view has changed."""
        return self._same(self._outside)

    def intact(self) -> bool:
        """No byte at all has changed."""
        return self._same(np.ones(self._buffer.size, bool))

    def _same(self, where: NDArray[np.bool_]) -> bool:
        return self._buffer[where].tobytes() == self._before[where].tobytes()
