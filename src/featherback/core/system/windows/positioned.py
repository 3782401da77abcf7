"""Reads and writes at a position of an open file, and what the system's cache can be asked for."""

from __future__ import annotations

import ctypes
import mmap
import msvcrt
import os
import sys
from ctypes import wintypes
from pathlib import Path
from typing import Any

from featherback.core.system.windows import api

assert sys.platform == "win32"


BLOCK = 4096
"""Offsets, lengths and addresses of direct reads are multiples of this many bytes."""
_MOST = 1 << 30  # bytes of one call


def read(file: int, into: memoryview | mmap.mmap, offset: int) -> int:
    """Read bytes from `offset` on, perhaps fewer than fit, and return how many; 0 at the end of the file."""
    return _move(api.kernel32.ReadFile, file, into, offset)


def write(file: int, data: memoryview, offset: int) -> int:
    """Write bytes at `offset`, perhaps not all, and return how many."""
    if data.readonly:
        data = memoryview(bytearray(data))
    return _move(api.kernel32.WriteFile, file, data, offset)


def _move(call: Any, file: int, data: memoryview | mmap.mmap, offset: int) -> int:
    size, count = min(memoryview(data).nbytes, _MOST), wintypes.DWORD()
    if not size:
        return 0
    place = api.Overlapped(offset=offset & 0xFFFFFFFF, offset_high=offset >> 32)
    room = (ctypes.c_char * size).from_buffer(data)
    if call(msvcrt.get_osfhandle(file), room, size, ctypes.byref(count), ctypes.byref(place)):
        return count.value
    if ctypes.get_last_error() == api.END_OF_FILE:
        return 0
    raise api.failure()


def allocate(file: int, size: int) -> None:
    """Make an empty file `size` bytes long, which takes the space on the disk."""
    os.ftruncate(file, size)


def open_plain(path: Path) -> int:
    """Open a file for sequential reads through the system's cache."""
    return _opened(path, 0x80)


def open_scattered(path: Path) -> int:
    """Open a file for scattered reads, without read-ahead by the system."""
    return _opened(path, api.RANDOM)


def open_direct(path: Path) -> int:
    """Open a file for aligned reads that bypass the system's cache."""
    return _opened(path, api.UNBUFFERED)


def _opened(path: Path, flags: int) -> int:
    handle = api.open_file(os.fspath(path), api.READ, api.SHARE, api.OPEN_EXISTING, flags)
    return api.descriptor(handle, os.O_RDONLY)


def will_read(file: int, offset: int, size: int) -> None:
    """Do nothing: Windows takes no hints about files that are not mapped."""


def anonymous(nbytes: int) -> mmap.mmap:
    """Return memory that belongs to no file. Its pages become resident when they are first written."""
    return mmap.mmap(-1, nbytes)


def in_large_pieces(buffer: mmap.mmap) -> None:
    """Do nothing: Windows maps files in pages."""


def drop_pages(buffer: mmap.mmap, end: int) -> None:
    """Take a buffer's pages up to byte `end` out of this process: of a mapped file, or of `anonymous`."""
    import numpy as np

    api.kernel32.VirtualUnlock(np.frombuffer(buffer, np.uint8, 1).ctypes.data, end)
