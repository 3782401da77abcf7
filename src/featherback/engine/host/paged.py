"""Float arrays with a row per layer, in RAM or in a file.

In a file only the layer in use is in memory: rows pass through the caller's buffer with positioned reads and writes,
so the file's pages belong to the system's cache, which can drop them, and never to this process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
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


class PagedArray:
    """float32 (layers, size), zero at first. `path` None: in RAM; otherwise in that file, made or overwritten."""

    def __init__(self, layers: int, size: int, path: str | Path | None = None) -> None:
        self.layers, self.size, self.path = layers, size, None if path is None else Path(path)
        self._file: int | None = None
        self._blank = np.ones(layers, bool)  # rows that are zero without having been written
        self._rows: Float32 | None = None
        if self.path is None:
            self._rows = np.zeros((layers, size), np.float32)
            return
        try:
            with private.create_anew(self.path) as file:
                self._file = os.dup(file.fileno())
            os.ftruncate(self._file, layers * size * 4)
        except OSError as error:
            raise FeatherbackError(f"Cannot make {self.path}: {error.strerror}.") from error

    def read(self, layer: int, out: Float32) -> None:
        """Copy row `layer` into `out` (size,)."""
        if self._blank[layer]:
            out.fill(0)
        elif self._rows is not None:
            out[...] = self._rows[layer]
        else:
            read_exactly(*self._opened(), out, layer * self.size * 4)

    def write(self, layer: int, values: Float32) -> None:
        """Replace row `layer` by `values` (size,)."""
        self._blank[layer] = False
        if self._rows is not None:
            self._rows[layer] = values
            return
        write_exactly(*self._opened(), np.ascontiguousarray(values), layer * self.size * 4)

    def fetch(self, layer: int, out: Array, on: Device) -> None:
        """Copy row `layer` into `out` (size,) of a device."""
        with on.backend.host(out, write=True) as values:
            self.read(layer, values)

    def put(self, layer: int, x: Array, on: Device) -> None:
        """Replace row `layer` by `x` (size,) of a device."""
        with on.backend.host(x) as values:
            self.write(layer, values)

    def holds(self, layer: int) -> bool:
        """Whether row `layer` has been written since it was zero."""
        return not self._blank[layer]

    @contextmanager
    def gather(self, layer: int, room: Array, on: Device) -> Iterator[Array]:
        """Row `layer` in `room` (size,) of a device, to be added to; what it holds at the end replaces the row."""
        self.fetch(layer, room, on)
        yield room
        self.put(layer, room, on)

    def clear(self) -> None:
        """Set every element to zero; nothing is written until it has to be."""
        self._blank.fill(True)

    def flush(self) -> None:
        """Bring what was written to the disk."""
        if self._file is not None:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file; further calls fail."""
        self._rows = None
        self._blank.fill(False)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _opened(self) -> tuple[int, Path]:
        if self._file is None or self.path is None:
            raise ValueError("the array is closed")
        return self._file, self.path
