"""Positioned reads and writes of whole arrays. One system call moves at most 2 GiB, and may move less."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from featherback.core.system import positioned
from featherback.errors import FeatherbackError


def write_at(file: int, array: NDArray[Any], offset: int) -> None:
    """Write a contiguous array at byte `offset`. Raises OSError if not all of it can be written."""
    left = array.data.cast("B")
    while left.nbytes:
        done = positioned.write(file, left, offset)
        if done == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left, offset = left[done:], offset + done


def read_at(file: int, out: NDArray[Any], offset: int, needed: int | None = None) -> bool:
    """Fill a contiguous array from byte `offset`.

    Returns False if the file ends before `needed` bytes (default: all).
    """
    left = out.data.cast("B")
    spare = 0 if needed is None else left.nbytes - needed
    while left.nbytes > spare:
        done = positioned.read(file, left, offset)
        if done == 0:
            return False
        left, offset = left[done:], offset + done
    return True


def write_exactly(file: int, path: Path, array: NDArray[Any], offset: int) -> None:
    """Write a contiguous array into the file `path`. Raises FeatherbackError if not all of it can be written."""
    try:
        write_at(file, array, offset)
    except OSError as error:
        raise FeatherbackError(f"Cannot write {path}: {error.strerror}.") from error


def read_exactly(file: int, path: Path, out: NDArray[Any], offset: int, needed: int | None = None) -> None:
    """Fill `out` from the file `path`. Raises FeatherbackError if it ends before `needed` bytes (default: all)."""
    try:
        whole = read_at(file, out, offset, needed)
    except OSError as error:
        raise FeatherbackError(f"Cannot read {path}: {error.strerror}.") from error
    if not whole:
        raise FeatherbackError(f"{path} is shorter than it was; another program may have changed it. Restore it.")
