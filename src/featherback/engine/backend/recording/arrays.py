"""Arrays and weights of a recorded pass: places instead of values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np


class Bound(int):
    """A boundary of a range of supervised rows. The difference of two is an `Extent`."""

    def __sub__(self, other: int) -> int:
        return Extent(other, self) if isinstance(other, Bound) else int(self) - other


class Extent(int):
    """The number of supervised rows in [first, last). In a replay with fewer rows, it is what is left of them."""

    first: int
    last: int

    def __new__(cls, first: int, last: int) -> Extent:
        made = super().__new__(cls, int(last) - int(first))
        made.first, made.last = int(first), int(last)
        return made


@dataclass(frozen=True, slots=True)
class Placed:
    """An array at a byte offset of a space: an arena, or the vector of a model. Rows are `ld` elements apart."""

    space: str
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    ld: int

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.size * self.dtype.itemsize

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Placed:
        keys = key if isinstance(key, tuple) else (key,)
        offset, shape = self.offset, list(self.shape)
        for axis, part in enumerate(keys):
            start, stop, step = part.indices(self.shape[axis])
            assert step == 1
            offset += start * self.dtype.itemsize * (self.ld if axis + 1 < len(shape) else 1)
            tile = isinstance(part.start, Bound) and isinstance(part.stop, Bound)
            shape[axis] = part.stop - part.start if tile else max(0, stop - start)
        ld = self.ld if len(shape) > 1 else shape[0]
        return replace(self, offset=offset, shape=tuple(shape), ld=ld)

    def reshape(self, *shape: int) -> Placed:
        """Return the same elements in another shape."""
        assert len(self.shape) == 1 or self.ld == self.shape[-1], "only contiguous arrays change their shape"
        return replace(self, shape=shape, ld=shape[-1])


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored weight of the model's file, or a rectangle of one."""

    name: str  # in the file
    type: int  # a `TensorType`
    whole: tuple[int, int]  # rows and columns of the tensor
    first: tuple[int, int]  # row and column
    shape: tuple[int, int]
    row_bytes: int

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def cols(self) -> int:
        return self.shape[1]

    def slice(self, rows: tuple[int, int] | None = None, cols: tuple[int, int] | None = None) -> Stored:
        """Return the rectangle [rows) x [cols)."""
        (row, last_row), (col, last_col) = rows or (0, self.rows), cols or (0, self.cols)
        first = self.first[0] + row, self.first[1] + col
        return replace(self, first=first, shape=(last_row - row, last_col - col))


@dataclass(frozen=True, slots=True)
class Dense:
    """An array that products read as a weight."""

    array: Placed

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape
