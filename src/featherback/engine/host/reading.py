"""Files held open for positioned reads, with clear errors."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from featherback.engine import kernels
from featherback.engine.formats.matrix import LayerWeights, Matrix
from featherback.errors import FeatherbackError

BLOCK = 4096
"""Bytes: offsets, lengths and addresses of direct reads are multiples of it."""


class Weights(Protocol):
    """A model as far as its files are read: `models.Model` is one."""

    @property
    def blocks(self) -> Sequence[object]:
        """One for each layer."""

    @property
    def tables(self) -> list[Matrix]:
        """The embedding and the head; one matrix where they are the same."""

    def layer(self, index: int) -> LayerWeights:
        """Those of a layer."""


def runs(matrices: Iterable[Matrix], gap: int = BLOCK) -> list[list[Matrix]]:
    """Matrices that lie within `gap` bytes of each other in a file, together, in the order of the file."""
    found: list[list[Matrix]] = []
    for m in sorted(matrices, key=lambda m: (str(m.home), m.offset)):
        last = found[-1][-1] if found else None
        if last is not None and last.home == m.home and m.offset - (last.offset + last.nbytes) <= gap:
            found[-1].append(m)
        else:
            found.append([m])
    return found


def without_map(model: Weights) -> list[LayerWeights]:
    """The layers' weights, norms and biases copied out of the map, of which nothing is left in memory.

    Reading a norm in place may map 2 MB around it, so a layer's pages are dropped before the next layer is read.
    """
    drop_maps(model.tables)
    layers = []
    for index in range(len(model.blocks)):
        layers.append(copied(model.layer(index)))
        drop_maps(layers[-1].matrices.values())
    return layers


def drop_maps(matrices: Iterable[Matrix]) -> None:
    """Drop all mapped pages of these matrices' files: headers and norms that were read, and their surroundings."""
    files = {id(m.data.base): m.data.base for m in matrices if isinstance(m.data.base, np.ndarray)}
    for file in files.values():
        kernels.drop_pages(file)


def copied(weights: LayerWeights) -> LayerWeights:
    """The same matrices, with norms and biases copied out of the map."""
    return replace(weights, vectors={name: np.array(value) for name, value in weights.vectors.items()})


class OpenFiles:
    """A descriptor a path, opened when first asked for by one of the functions below."""

    def __init__(self, opener: Callable[[Path], int]) -> None:
        self._open, self._files = opener, dict[Path, int]()

    def __getitem__(self, path: Path) -> int:
        """FeatherbackError if the file cannot be opened."""
        if path not in self._files:
            self._files[path] = self._open(path)
        return self._files[path]

    def close(self) -> None:
        """Close all of them."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()


def plain(path: Path) -> int:
    """For reads through the page cache in order."""
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise FeatherbackError(f"Cannot read {path}: {error.strerror}.") from error


def scattered(path: Path) -> int:
    """For reads here and there: the system reads no further than it is asked to."""
    file = plain(path)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    return file


def direct(path: Path) -> int:
    """For aligned reads that leave no trace in the page cache, where the file system can do that."""
    if hasattr(os, "O_DIRECT"):
        with suppress(OSError):  # some refuse to open so (those in memory), some to read
            file = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                os.preadv(file, [mmap.mmap(-1, BLOCK)], 0)
            except OSError:
                os.close(file)
                raise
            return file
    file = plain(path)
    if hasattr(fcntl, "F_NOCACHE"):  # macOS
        fcntl.fcntl(file, fcntl.F_NOCACHE, 1)
    return file
