"""An adapter's tensors in a few flat arrays. Flower moves each array of a message by itself, and each step of its way
takes milliseconds, so hundreds of tensors take seconds of every round (docs/decisions/federated.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from featherback.errors import FeatherbackError
from featherback.federated.strategies.base import Arrays

LEAST = 1 << 15
"""Values of a piece, or more if its last tensor is longer: 128 KiB. With longer ones, Flower's programs grow."""


class Pieces:
    """How tensors of these shapes, in order, are divided into pieces: flat arrays, each named by its tensors."""

    def __init__(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        self._tensors = dict(tensors)
        groups: list[list[str]] = [[]]
        for name in self._tensors:
            if sum(map(self._size, groups[-1])) >= LEAST:
                groups.append([])
            groups[-1].append(name)
        self._groups = {_name(group): group for group in groups if group}
        self.shapes = {name: (sum(map(self._size, group)),) for name, group in self._groups.items()}
        """Name -> shape of each piece."""

    def pack(self, tensors: Mapping[str, npt.NDArray[Any]]) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Yield the name and values of the pieces that hold these tensors, which have the shapes."""
        for piece, group in self._groups.items():
            yield piece, np.concatenate([np.ravel(tensors[name]) for name in group]).astype(np.float32, copy=False)

    def unpack(self, pieces: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Return the tensors in these pieces, as float32. Raises FeatherbackError if they are others."""
        if {name: each.shape for name, each in pieces.items()} != self.shapes:
            raise FeatherbackError("The message holds another adapter than that of the options in the table train.")
        found: Arrays = {}
        for piece, group in self._groups.items():
            ends = np.cumsum([self._size(name) for name in group])
            for name, values in zip(group, np.split(pieces[piece].astype(np.float32, copy=False), ends[:-1])):
                found[name] = values.reshape(self._tensors[name])
        return found

    def _size(self, name: str) -> int:
        return math.prod(self._tensors[name])


def _name(group: list[str]) -> str:
    return group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}"
