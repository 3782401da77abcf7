"""A file without a name that is written in small parts and read back in large pieces, one of them ahead."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from featherback.engine.host.positioned import read_at, write_at
from featherback.errors import FeatherbackError


class PieceFileError(FeatherbackError):
    """Raised if a file cannot be written or read back: for example, because the disk is full."""

    def __init__(self, message: str, file: PieceFile) -> None:
        super().__init__(message)
        self.file = file


class PieceFile:
    """`nbytes` bytes in an unnamed file in `folder`, which vanishes with the process. `what` names it in errors.

    Pieces are read by positioned reads, not by a map: the memory of the process then holds the pieces that it reads,
    and nothing else.
    """

    def __init__(self, folder: Path, nbytes: int, what: str) -> None:
        self._what, self._folder = what, folder
        self._reader: ThreadPoolExecutor | None = None
        try:
            self._file = tempfile.TemporaryFile(dir=folder, prefix="featherback-")  # noqa: SIM115 - kept open
            os.ftruncate(self._file.fileno(), nbytes)
        except OSError as error:
            raise FeatherbackError(f"Cannot keep {what} in {folder}: {error.strerror}.") from error

    def write(self, values: NDArray[Any], offset: int) -> None:
        """Write a contiguous array at byte `offset`."""
        try:
            write_at(self._file.fileno(), values, offset)
        except OSError as error:
            raise PieceFileError(f"Cannot write {self._what} in {self._folder}: {error.strerror}.", self) from error

    def read(self, out: NDArray[Any], offset: int) -> None:
        """Fill a contiguous array from byte `offset`."""
        try:
            whole = read_at(self._file.fileno(), out, offset)
        except OSError as error:
            raise PieceFileError(f"Cannot read {self._what} in {self._folder}: {error.strerror}.", self) from error
        if not whole:
            raise PieceFileError(f"{self._what} in {self._folder} could not be read back completely.", self)

    def start(self, read: Callable[[], None]) -> Future[None]:
        """Run a function that reads, in the file's own thread, and return its future."""
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="featherback-pieces")
        return self._reader.submit(read)

    def close(self) -> None:
        """End the thread and free the space."""
        if self._reader is not None:
            self._reader.shutdown()
        self._file.close()
