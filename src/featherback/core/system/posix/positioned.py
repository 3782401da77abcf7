"""Reads and writes at a position of an open file, and what the system's cache can be asked for."""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path

BLOCK = 4096
"""Offsets, lengths and addresses of direct reads are multiples of this many bytes."""
_HAS_ADVICE = hasattr(os, "posix_fadvise")


def read(file: int, into: memoryview | mmap.mmap, offset: int) -> int:
    """Read bytes from `offset` on, perhaps fewer than fit, and return how many; 0 at the end of the file."""
    return os.preadv(file, [into], offset)


def write(file: int, data: memoryview, offset: int) -> int:
    """Write bytes at `offset`, perhaps not all, and return how many."""
    return os.pwrite(file, data, offset)


def allocate(file: int, size: int) -> None:
    """Make an empty file `size` bytes long, and take the space on the disk if the system can."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


def open_plain(path: Path) -> int:
    """Open a file for sequential reads through the system's cache."""
    return os.open(path, os.O_RDONLY)


def open_scattered(path: Path) -> int:
    """Open a file for scattered reads, without read-ahead by the system."""
    file = open_plain(path)
    if _HAS_ADVICE:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    return file


def open_direct(path: Path) -> int:
    """Open a file for aligned reads that bypass the system's cache, if the file system supports that."""
    if hasattr(os, "O_DIRECT"):
        with suppress(OSError):  # some file systems reject the flag when opening (those in memory), others when reading
            file = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                os.preadv(file, [mmap.mmap(-1, BLOCK)], 0)
            except OSError:
                os.close(file)
                raise
            return file
    file = open_plain(path)
    if hasattr(fcntl, "F_NOCACHE"):  # macOS
        fcntl.fcntl(file, fcntl.F_NOCACHE, 1)
    return file


def will_read(file: int, offset: int, size: int) -> None:
    """Ask the system to bring bytes of a file into its cache soon."""
    if _HAS_ADVICE:
        os.posix_fadvise(file, offset, size, os.POSIX_FADV_WILLNEED)


def anonymous(nbytes: int) -> mmap.mmap:
    """Return memory that belongs to no file. Its pages become resident when they are first written."""
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def in_large_pieces(buffer: mmap.mmap) -> None:
    """Ask the system to map a mapped file in pieces of huge pages, if its file system has them."""
    with suppress(OSError):
        buffer.madvise(mmap.MADV_HUGEPAGE)


def drop_pages(buffer: mmap.mmap, end: int) -> None:
    """Free the memory of a buffer's pages up to byte `end`: of a mapped file, or of `anonymous`."""
    buffer.madvise(mmap.MADV_DONTNEED, 0, end)
