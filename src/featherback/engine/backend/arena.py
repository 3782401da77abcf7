"""One block of scratch memory with stack discipline.

Every activation is taken from it. Its size is planned, so its peak is a number known in advance, and neither the
allocator's rounding nor its fragmentation adds to it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from featherback.core.sizes import shown_mb
from featherback.errors import FeatherbackError

ALIGNMENT = 64


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Bytes that an array occupies in an arena."""
    nbytes = dtype.itemsize
    for extent in shape:
        nbytes *= extent
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Arena:
    """`nbytes` of anonymous memory; pages become resident when first written.

    FeatherbackError if the system refuses as much.
    """

    def __init__(self, nbytes: int) -> None:
        self.capacity = max(nbytes, ALIGNMENT)
        try:
            self._memory = mmap.mmap(-1, self.capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError):
            raise FeatherbackError(
                f"The system refuses {shown_mb(self.capacity)} of scratch memory; "
                "use a smaller batch or sequence length."
            ) from None
        self._top = 0
        self.high_water = 0
        """Most bytes ever in use at once."""

    def take(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """An uninitialised array, valid until the frame it was taken in ends; `name` is for the ledger and errors."""
        kind = np.dtype(dtype)
        start, self._top = self._top, self._top + aligned(shape, kind)
        if self._top > self.capacity:
            self._top = start
            raise MemoryError(
                f"the arena of {self.capacity} bytes has no room for {name} {shape} at {start}: the plan is wrong"
            )
        self.high_water = max(self.high_water, self._top)
        return np.ndarray(shape, kind, self._memory, start)

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Everything taken inside is given back at the end."""
        top = self._top
        try:
            yield
        finally:
            self._top = top
