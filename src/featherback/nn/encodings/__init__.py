"""Encodings: how an intermediate is stored between forward and backward pass. Each module here is one, `ENCODING`."""

from __future__ import annotations

from typing import Any

import numpy as np

from featherback.core.registry import Registry
from featherback.engine.backend.protocol import Array, Operations

EXACT = "exact"


class Encoding:
    """Rows in a type that layers compute with. Subclasses override this default."""

    precision = EXACT
    """The value of --keep-precision that enables it."""
    in_place = True
    """Whether layers may write and read the stored rows directly."""
    slopes_of: str | None = None
    """The activation whose slope is all that can be read back, by `backward` instead of `load`. None: the values."""

    def row(self, width: int, operand: np.dtype[Any]) -> tuple[int, np.dtype[Any]]:
        """Return the number and type of the elements that store `width` columns.

        `operand`: the type that products read.
        """
        return width, operand

    def part(self, first: int, last: int) -> slice:
        """Return where columns [first, last) of a row are stored. Tiles begin at multiples of 256."""
        return slice(first, last)

    def store(self, ops: Operations, values: Array, stored: Array) -> None:
        """stored (T, elements) = values (T, columns)."""
        ops.cast(values, stored)

    def load(self, ops: Operations, stored: Array, values: Array) -> None:
        """values (T, columns) = stored (T, elements), as precisely as the encoding allows."""
        ops.cast(stored, values)

    def backward(self, ops: Operations, da: Array, stored: Array, dz: Array) -> None:
        """dz (T, columns), an operand = da (T, columns), float32, times the slopes that are stored for z.

        Only for encodings with `slopes_of`.
        """
        raise NotImplementedError


ENCODINGS: Registry[Encoding] = Registry(__name__, "ENCODING", "encoding")
PRECISIONS = (EXACT, *sorted({ENCODINGS[name].precision for name in ENCODINGS.names} - {EXACT}))
"""The values that --keep-precision accepts."""
APPROXIMATE = next(ENCODINGS[name].precision for name in ENCODINGS.names if ENCODINGS[name].slopes_of)
"""The value that allows encodings from which only a slope can be read back, so that gradients are approximate."""
