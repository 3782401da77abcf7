"""Intermediates of a block that stay from its forward to its backward pass; what is missing is computed again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from featherback.backend.protocol import Array
from featherback.layers.span import Span


class Intermediate(NamedTuple):
    """A named result of a block that its backward pass needs."""

    width: int  # columns, a row per token
    state: bool = False
    """Held in float32 whatever the products compute in: a factor of the attention scores. Otherwise an operand."""
    by_head: bool = False
    """A row per head, a column per token."""

    def placed(self, tokens: int, operand: np.dtype[Any]) -> tuple[tuple[int, int], np.dtype[Any]]:
        """Its shape and type for this many tokens."""
        shape = (self.width, tokens) if self.by_head else (tokens, self.width)
        return shape, np.dtype(np.float32) if self.state else operand


@dataclass(frozen=True)
class Kept:
    """The intermediates of one block, by name, for all tokens of a batch."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    by_head: Collection[str] = ()  # those with a row per head
    prepared: Array | None = None  # what the adapter prepared of the layer, which stays whatever the plan keeps
    place: int = 0  # of the block among those that keep anything

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def rows(self, name: str, span: Span) -> Array | None:
        """A span's part of an intermediate, (T, width) or (heads, T); None if it is not kept."""
        array = self.arrays.get(name)
        if array is None:
            return None
        return array[:, span.own] if name in self.by_head else array[span.own]


NOTHING = Kept()
