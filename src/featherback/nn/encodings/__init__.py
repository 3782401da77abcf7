"""How an intermediate is stored from the forward to the backward pass: one module here per encoding, its `ENCODING`."""

from __future__ import annotations

from typing import Any

import numpy as np

from featherback.core.registry import Registry
from featherback.engine.backend.protocol import Array, Operations

EXACT = "exact"


class Encoding:
    """Rows in a type that layers compute with, which is what an encoding is unless it says otherwise."""

    precision = EXACT
    """What a user must ask for, with --keep-precision, to have it."""
    in_place = True
    """Whether layers may write and read the stored rows themselves."""

    def row(self, width: int, operand: np.dtype[Any]) -> tuple[int, np.dtype[Any]]:
        """Elements that `width` columns are stored in, and their type. `operand`: what products read."""
        return width, operand

    def part(self, first: int, last: int) -> slice:
        """Where columns [first, last) of a row are stored. Tiles begin at multiples of 256."""
        return slice(first, last)

    def store(self, ops: Operations, values: Array, stored: Array) -> None:
        """stored (T, elements) = values (T, columns)."""
        ops.cast(values, stored)

    def load(self, ops: Operations, stored: Array, values: Array) -> None:
        """The inverse, as near as the encoding gets."""
        ops.cast(stored, values)


ENCODINGS: Registry[Encoding] = Registry(__name__, "ENCODING", "encoding")
PRECISIONS = (EXACT, *sorted({ENCODINGS[name].precision for name in ENCODINGS.names} - {EXACT}))
"""What --keep-precision can be."""
