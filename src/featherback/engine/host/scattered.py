"""Rows at scattered places of a matrix on disk: embeddings, or the head's rows of a batch's targets.

Touched in a mapping, every row would bring up to two megabytes of pages around it, and unmapping them costs a call
every few rows. Positioned reads bring the row and leave the process's memory alone.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.protocol import Array, Backend
from featherback.engine.formats.matrix import Matrix
from featherback.engine.host.positioned import read_exactly
from featherback.engine.host.reading import OpenFiles, scattered
from featherback.errors import FeatherbackError

ROWS = 256
"""Rows asked for at once."""


def check_ids(ids: NDArray[np.integer[Any]], rows: int) -> None:
    """FeatherbackError for a token id that a table of so many rows does not have."""
    if ids.size and not 0 <= ids.min() <= ids.max() < rows:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise FeatherbackError(f"A token id is {wrong}; the model's embedding has 0 to {rows - 1}.")


class ScatteredRows:
    """Reads rows of matrices that lie in files, each through a descriptor of its file."""

    def __init__(self, device: Backend) -> None:
        self._device = device
        self._files = OpenFiles(scattered)

    def gather(self, stored: Matrix, ids: NDArray[np.int32], out: Array) -> None:
        """out (n, D) = rows `ids`, dequantised. FeatherbackError if there is no such row, or no reading the file."""
        check_ids(ids, stored.rows)
        file, width = self._files[stored.home], stored.row_bytes
        for start in range(0, len(ids), ROWS):
            offsets = [stored.offset + int(i) * width for i in ids[start : start + ROWS]]
            rows = np.empty((len(offsets), width), np.uint8)
            if hasattr(os, "posix_fadvise"):  # all of them, before the first is waited for
                for offset in offsets:
                    os.posix_fadvise(file, offset, width, os.POSIX_FADV_WILLNEED)
            for row, offset in zip(rows, offsets, strict=True):
                read_exactly(file, stored.home, row, offset)
            part = Matrix(rows.reshape(-1), stored.type, len(offsets), stored.cols)
            order = np.arange(len(offsets), dtype=np.int32)
            self._device.gather_rows(part, order, out[start : start + ROWS])

    def close(self) -> None:
        """Close the files."""
        self._files.close()
