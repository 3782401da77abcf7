"""The speed of the disk that holds a model's file."""

from __future__ import annotations

import mmap
import time
from contextlib import suppress
from pathlib import Path

from featherback.core.system import positioned
from featherback.engine.host.reading import BLOCK, OpenFiles, direct

PIECE = 2 << 20
"""Bytes of a read. An expert is about as large."""
MOST_SECONDS = 0.3


def rate_of(path: Path) -> float | None:
    """Return the bytes per second with which pieces of a file are read past the page cache.

    Takes at most about MOST_SECONDS. None if the file is too small to measure, or cannot be read.
    """
    files, buffer = OpenFiles(direct), mmap.mmap(-1, PIECE)
    read, begun = 0, time.perf_counter()
    with suppress(OSError):
        pieces = path.stat().st_size // PIECE
        if pieces < 4:
            return None
        file = files[path]
        for number in range(pieces):
            place = number * 7919 % pieces * PIECE  # all over the file
            read += positioned.read(file, buffer, place // BLOCK * BLOCK)
            if time.perf_counter() - begun > MOST_SECONDS:
                break
    files.close()
    return read / (time.perf_counter() - begun) if read else None
