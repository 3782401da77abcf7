"""Read a file without moving the position of its descriptor."""

from __future__ import annotations

import io
import os


class SharedFile(io.RawIOBase):
    """Read a file by its descriptor without moving the descriptor's position, which other processes share."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._begin = os.lseek(descriptor, 0, os.SEEK_CUR)
        self._at = self._begin

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        piece = os.pread(self._descriptor, len(buffer), self._at)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        size = os.fstat(self._descriptor).st_size
        self._at = offset + {os.SEEK_SET: self._begin, os.SEEK_CUR: self._at, os.SEEK_END: size}[whence]
        return self._at - self._begin

    def tell(self) -> int:
        return self._at - self._begin
