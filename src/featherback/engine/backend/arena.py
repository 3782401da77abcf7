"""A block of scratch memory that is used as a stack.

Every activation is allocated in it. Its size is planned, so its peak is known in advance, and neither rounding nor
fragmentation of an allocator adds to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from featherback.core.sizes import shown_mb
from featherback.core.system import positioned
from featherback.errors import FeatherbackError

ALIGNMENT = 64


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the number of bytes that an array occupies in an arena."""
    nbytes = dtype.itemsize
    for extent in shape:
        nbytes *= extent
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Stack:
    """Memory that is used as a stack. `_top`: bytes in use."""

    _top: int = 0

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Free, at the end of the context, all arrays that were allocated inside."""
        top = self._top
        try:
            yield
        finally:
            self._top = top


class Arena(Stack):
    """`nbytes` of anonymous memory. Its pages become resident when they are first written.

    Raises FeatherbackError if the system cannot provide that much.
    """

    def __init__(self, nbytes: int) -> None:
        self.capacity = max(nbytes, ALIGNMENT)
        try:
            self._memory = positioned.anonymous(self.capacity)
        except (OSError, OverflowError):
            raise FeatherbackError(
                f"The system cannot provide {shown_mb(self.capacity)} of scratch memory. "
                "Use a smaller batch or sequence length."
            ) from None
        self.high_water = 0
        """Maximum number of bytes that were in use at once."""

    def take(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return an uninitialised array, valid until its frame ends. `name` is for the ledger and for errors."""
        kind = np.dtype(dtype)
        start, self._top = self._top, self._top + aligned(shape, kind)
        if self._top > self.capacity:
            self._top = start
            raise MemoryError(
                f"the arena of {self.capacity} bytes has no room for {name} {shape} at {start}: the plan is wrong"
            )
        self.high_water = max(self.high_water, self._top)
        return np.ndarray(shape, kind, self._memory, start)

    def release(self) -> None:
        """Give the pages back to the system until they are written again. Nothing may be allocated."""
        assert not self._top
        positioned.drop_pages(self._memory, self.capacity)
