"""Positioned reads that say what went wrong."""

from __future__ import annotations

import os
from pathlib import Path

from featherback.errors import FeatherbackError


def open_file(path: Path, flags: int = 0) -> int:
    """A descriptor for reading; FeatherbackError if there is none to be had."""
    try:
        return os.open(path, os.O_RDONLY | flags)
    except OSError as error:
        raise FeatherbackError(f"Cannot read {path}: {error.strerror}.") from error


def read_exactly(file: int, path: Path, target: memoryview, offset: int, needed: int) -> None:
    """Fill `target` from `offset` on; FeatherbackError if not even `needed` bytes come (a file may end in the rest)."""
    done = 0
    while done < needed:
        try:
            count = os.preadv(file, [target[done:]], offset + done)
        except OSError as error:
            raise FeatherbackError(f"Cannot read {path}: {error.strerror}.") from error
        if count == 0:
            raise FeatherbackError(f"{path} is shorter than it was: was it changed by another program?")
        done += count
