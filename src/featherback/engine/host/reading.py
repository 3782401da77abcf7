"""Files kept open for positioned reads, with clear errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from featherback.core.system import positioned
from featherback.engine import kernels
from featherback.engine.formats.matrix import LayerWeights, Matrix
from featherback.errors import FeatherbackError

BLOCK = positioned.BLOCK


class Stacks(Protocol):
    """The part of a block that the readers use."""

    @property
    def stacks(self) -> Mapping[str, int]:
        """Matrices that are read expert by expert: name -> experts."""


class Weights(Protocol):
    """The part of a model that the readers of its file use. `models.Model` implements it."""

    @property
    def blocks(self) -> Sequence[Stacks]:
        """One for each layer."""

    @property
    def tables(self) -> list[Matrix]:
        """The embedding and the head; a single matrix if they are the same."""

    def layer(self, index: int) -> LayerWeights:
        """Return the weights of a layer."""


def without_stacks(model: Weights, index: int, weights: LayerWeights) -> list[Matrix]:
    """Return the matrices of a layer that are read as a whole."""
    stacks = model.blocks[index].stacks
    return [matrix for name, matrix in weights.matrices.items() if name not in stacks]


def runs(matrices: Iterable[Matrix], gap: int = BLOCK) -> list[list[Matrix]]:
    """Group matrices that are within `gap` bytes of each other in a file. Groups are in file order."""
    found: list[list[Matrix]] = []
    for m in sorted(matrices, key=lambda m: (str(m.home), m.offset)):
        last = found[-1][-1] if found else None
        if last is not None and last.home == m.home and m.offset - (last.offset + last.nbytes) <= gap:
            found[-1].append(m)
        else:
            found.append([m])
    return found


def layers_without_map(model: Weights) -> list[LayerWeights]:
    """Return the layers' weights, with norms and biases copied, and leave nothing of the map in memory.

    Reading a norm in place may map 2 MB around it, so a layer's pages are dropped before the next layer is read.
    """
    drop_maps(model.tables)
    layers = []
    for index in range(len(model.blocks)):
        layers.append(copied(model.layer(index)))
        drop_maps(layers[-1].matrices.values())
    return layers


def drop_maps(matrices: Iterable[Matrix]) -> None:
    """Drop all mapped pages of these matrices' files, including headers and norms that were read."""
    files = {id(m.data.base): m.data.base for m in matrices if isinstance(m.data.base, np.ndarray)}
    for file in files.values():
        kernels.drop_pages(file)


def copied(weights: LayerWeights) -> LayerWeights:
    """Return the same matrices, with norms and biases copied out of the map."""
    return replace(weights, vectors={name: np.array(value) for name, value in weights.vectors.items()})


class OpenFiles:
    """One descriptor per path, opened on first use by one of the functions below."""

    def __init__(self, opener: Callable[[Path], int]) -> None:
        self._open, self._files = opener, dict[Path, int]()

    def __getitem__(self, path: Path) -> int:
        """Return the descriptor. Raises FeatherbackError if the file cannot be opened."""
        if path not in self._files:
            self._files[path] = self._open(path)
        return self._files[path]

    def close(self) -> None:
        """Close all descriptors."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()


def plain(path: Path) -> int:
    """Open a file for sequential reads through the page cache."""
    return _opened(positioned.open_plain, path)


def scattered(path: Path) -> int:
    """Open a file for scattered reads, without read-ahead by the system."""
    return _opened(positioned.open_scattered, path)


def direct(path: Path) -> int:
    """Open a file for aligned reads that bypass the page cache, if the file system supports that."""
    return _opened(positioned.open_direct, path)


def _opened(opener: Callable[[Path], int], path: Path) -> int:
    try:
        return opener(path)
    except OSError as error:
        raise FeatherbackError(f"Cannot read {path}: {error.strerror}.") from error
