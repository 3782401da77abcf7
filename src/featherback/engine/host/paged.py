"""Float arrays with a row per layer, in RAM or in a file.

With a file, only the layer in use is in memory. Rows pass through the caller's buffer with positioned reads and writes,
so the file's pages belong to the system's cache, which can drop them, and never to this process.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.core import private
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.engine.host.positioned import read_exactly, write_exactly
from featherback.errors import FeatherbackError

Float32 = NDArray[np.float32]
PIECE = 1 << 18
"""Elements that are set to zero at a time."""


class LayerRows(ABC):
    """Float rows, one per layer, that are read on the host, and from there into arrays of a device."""

    @abstractmethod
    def read(self, layer: int, out: Float32) -> None:
        """Copy row `layer` into `out` (size,)."""

    def fetch(self, layer: int, out: Array, on: Device) -> None:
        """Copy row `layer` into `out` (size,) of a device."""
        with on.backend.host(out, write=True) as values:
            self.read(layer, values)


class PagedArray(LayerRows):
    """float32 (layers, size), zero at first. `path` None: in RAM; otherwise in that file, made or overwritten.

    `rows`: the layers whose values are stored, ascending; None: all. The others are zero and cannot be written.
    """

    def __init__(
        self, layers: int, size: int, path: str | Path | None = None, rows: Sequence[int] | None = None
    ) -> None:
        self.layers, self.size, self.path = layers, size, None if path is None else Path(path)
        self.rows = tuple(range(layers) if rows is None else rows)
        self._place = {layer: place for place, layer in enumerate(self.rows)}
        self._file: int | None = None
        self._blank = np.ones(layers, bool)  # rows that are zero and have not been written
        self._rows: Float32 | None = None
        if self.path is None:
            self._rows = np.zeros((len(self.rows), size), np.float32)
            return
        try:
            with private.create_anew(self.path) as file:
                self._file = os.dup(file.fileno())
            os.ftruncate(self._file, self.nbytes)
        except OSError as error:
            raise FeatherbackError(f"Cannot create {self.path}: {error.strerror}.") from error

    def zeros_like(self, size: int, path: str | Path | None = None) -> PagedArray:
        """Return a new array of zeros that stores the same layers, with rows of `size` elements."""
        return PagedArray(self.layers, size, path, self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all stored rows."""
        return len(self.rows) * self.size * 4

    def read(self, layer: int, out: Float32, first: int = 0) -> None:
        """Copy elements [first, first + n) of row `layer` into `out` (n,)."""
        if self._blank[layer]:
            out.fill(0)
        elif self._rows is not None:
            out[...] = self._rows[self._place[layer], first : first + len(out)]
        else:
            read_exactly(*self._opened(), out, (self._place[layer] * self.size + first) * 4)

    def write(self, layer: int, values: Float32, first: int = 0) -> None:
        """Replace elements [first, first + n) of row `layer` by `values` (n,)."""
        if self._blank[layer] and len(values) < self.size:
            self._set_to_zero(layer)
        self._blank[layer] = False
        place = self._place[layer]
        if self._rows is not None:
            self._rows[place, first : first + len(values)] = values
            return
        write_exactly(*self._opened(), np.ascontiguousarray(values), (place * self.size + first) * 4)

    def fetch(self, layer: int, out: Array, on: Device, first: int = 0) -> None:
        """Copy elements [first, first + n) of row `layer` into `out` (n,) of a device."""
        with on.backend.host(out, write=True) as values:
            self.read(layer, values, first)

    def put(self, layer: int, x: Array, on: Device, first: int = 0) -> None:
        """Replace elements [first, first + n) of row `layer` by `x` (n,), an array of a device."""
        with on.backend.host(x) as values:
            self.write(layer, values, first)

    def _set_to_zero(self, layer: int) -> None:
        """Write zeros over a row, whose old content may be from before `clear`."""
        zeros = np.zeros(min(self.size, PIECE), np.float32)
        self._blank[layer] = False
        for first in range(0, self.size, PIECE):
            self.write(layer, zeros[: self.size - first], first)

    def holds(self, layer: int) -> bool:
        """Return whether row `layer` has been written since all rows were last set to zero."""
        return not self._blank[layer]

    @contextmanager
    def gather(self, layer: int, room: Array, on: Device) -> Iterator[Array]:
        """Yield row `layer` in `room` (size,), an array of a device, to be added to.

        Its final content replaces the row.
        """
        self.fetch(layer, room, on)
        yield room
        self.put(layer, room, on)

    def clear(self) -> None:
        """Set every element to zero. Nothing is written until it must be."""
        self._blank.fill(True)

    def flush(self) -> None:
        """Flush what was written to the disk."""
        if self._file is not None:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file. Later calls fail."""
        self._rows = None
        self._blank.fill(False)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _opened(self) -> tuple[int, Path]:
        if self._file is None or self.path is None:
            raise ValueError("the array is closed")
        return self._file, self.path
