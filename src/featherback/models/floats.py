"""Folders of float weights, read a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.safetensors import SafetensorsFolder
from featherback.engine.formats.store import matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.models.streams import PIECE, picked, unmap_pages

JOINED = "joined"


class FloatFolder:
    """A folder of float weights. `turned`: endings of the names of stacks that hold each matrix as (in, out)."""

    label = JOINED

    def __init__(self, store: SafetensorsFolder, turned: tuple[str, ...] = ()) -> None:
        self.path, self.store = store.path, store
        self._turned = {name for name, info in store.tensors.items() if name.endswith(turned) and len(info.shape) == 3}
        self.tensors: Mapping[str, TensorInfo] = {
            name: replace(info, shape=(info.shape[0], *info.shape[:0:-1])) if name in self._turned else info
            for name, info in store.tensors.items()
        }

    def kind(self, name: str) -> TensorType:
        """The type of the rows of a tensor: its own."""
        return self.tensors[name].type

    def rows(self, name: str, wanted: range) -> Iterator[Matrix]:
        """Yield rows of a tensor, a few at a time, and unmap their pages."""
        if name not in self._turned:
            yield from picked(matrix(self.store, name), wanted)
            return
        _, height, width = self.tensors[name].shape
        step = max(1, PIECE // (2 * width)) * wanted.step
        at = wanted.start
        while at < wanted.stop:
            end = min(at + step, wanted.stop, (at // height + 1) * height)
            some = range(at, end, wanted.step)
            yield self._column(name, at // height, range(at % height, at % height + end - at, wanted.step))
            at += len(some) * wanted.step

    def close(self) -> None:
        """Close the files."""
        self.store.close()

    def _column(self, name: str, number: int, wanted: range) -> Matrix:
        """Return columns of a stored matrix of a stack as rows."""
        info = self.tensors[name]
        experts, height, width = info.shape
        bits = np.dtype(f"u{info.type.block_bytes}")
        stored = self.store.data(name).view(bits).reshape(experts, width, height)[number]
        found = np.empty((len(wanted), width), bits)
        step = max(1, PIECE // (height * bits.itemsize))
        for first in range(0, width, step):
            part = stored[first : first + step, wanted.start : wanted.stop : wanted.step]
            found[:, first : first + step] = part.T
            unmap_pages(self.store.data(name))
        rows = found.reshape(-1).view(np.uint8)
        return Matrix(rows, info.type, len(wanted), width, self.store.file_of(name))
