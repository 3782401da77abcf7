"""Weights as they are stored on disk: a matrix, and the weights of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.types import TensorType


@dataclass(frozen=True, eq=False, slots=True)
class Matrix:
    """A read-only weight matrix W (rows, cols) = (out_features, in_features), still quantised, stored row by row.

    `data` is a one-dimensional uint8 view, usually of a memory map. So holding a Matrix costs no memory, and reading it
    brings in file pages that the system can drop again. `file` and `offset` say where the same bytes can be read with
    positioned reads; `file` is None for a matrix in memory.
    """

    data: NDArray[np.uint8]
    type: TensorType
    rows: int
    cols: int
    file: Path | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        if self.data.dtype != np.uint8 or self.data.shape != (self.nbytes,):
            raise ValueError(f"a {self.type.name} matrix {self.shape} needs {self.nbytes} bytes, not {self.data.shape}")

    @property
    def home(self) -> Path:
        """The file that holds it. Raises ValueError if it is only in memory."""
        if self.file is None:
            raise ValueError("this matrix is not stored in a file")
        return self.file

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.rows, self.cols

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.type.row_bytes(self.cols)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole matrix."""
        return self.rows * self.row_bytes

    def rows_between(self, first: int, last: int) -> Matrix:
        """Return rows [first, last) as a view."""
        start, end = first * self.row_bytes, last * self.row_bytes
        return Matrix(self.data[start:end], self.type, last - first, self.cols, self.file, self.offset + start)


@dataclass(frozen=True, eq=False, slots=True)
class LayerWeights:
    """The weights of one decoder layer, by the names that its block uses."""

    matrices: Mapping[str, Matrix]  # (out_features, in_features)
    vectors: Mapping[str, NDArray[np.float32]]  # (n,)

    @property
    def copied_bytes(self) -> int:
        """Bytes of the vectors that are copies, because they were converted or an offset was added."""
        return sum(vector.nbytes for vector in self.vectors.values() if vector.flags.writeable)

    def with_matrices(self, matrices: Mapping[str, Matrix]) -> LayerWeights:
        """Return the same vectors with other matrices."""
        return replace(self, matrices=matrices)
