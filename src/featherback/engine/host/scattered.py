"""Reading scattered rows of a matrix on disk: embeddings, or the head's rows for a batch's targets.

Through a mapping, every row would bring in up to two megabytes of pages around it, and unmapping them would cost a call
every few rows. Positioned reads fetch only the row and do not grow the process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.core.system import positioned
from featherback.engine.backend.protocol import Array, Backend
from featherback.engine.formats.matrix import Matrix
from featherback.engine.host.positioned import read_exactly
from featherback.engine.host.reading import OpenFiles, scattered
from featherback.errors import FeatherbackError

ROWS = 256
"""Number of rows requested at once."""


def check_ids(ids: NDArray[np.integer[Any]], rows: int) -> None:
    """Raise FeatherbackError for a token id outside a table with this many rows."""
    if ids.size and not 0 <= ids.min() <= ids.max() < rows:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise FeatherbackError(f"A token id is {wrong}; the model's token ids are 0 to {rows - 1}.")


class ScatteredRows:
    """Reads rows of matrices that are stored in files, through one descriptor per file."""

    def __init__(self, device: Backend) -> None:
        self._device = device
        self._files = OpenFiles(scattered)

    def gather(self, stored: Matrix, ids: NDArray[np.int32], out: Array) -> None:
        """out (n, D) = rows `ids`, dequantised. Raises FeatherbackError for a missing row or an unreadable file."""
        check_ids(ids, stored.rows)
        file, width = self._files[stored.home], stored.row_bytes
        for start in range(0, len(ids), ROWS):
            offsets = [stored.offset + int(i) * width for i in ids[start : start + ROWS]]
            rows = np.empty((len(offsets), width), np.uint8)
            for offset in offsets:  # request all rows before waiting for the first
                positioned.will_read(file, offset, width)
            for row, offset in zip(rows, offsets, strict=True):
                read_exactly(file, stored.home, row, offset)
            part = Matrix(rows.reshape(-1), stored.type, len(offsets), stored.cols)
            order = np.arange(len(offsets), dtype=np.int32)
            self._device.gather_rows(part, order, out[start : start + ROWS])

    def close(self) -> None:
        """Close the files."""
        self._files.close()
