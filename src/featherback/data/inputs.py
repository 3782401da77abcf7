"""Where data come from: files, and standard input, which is read as often as a file is."""

from __future__ import annotations

import io
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

from featherback.core.files import open_regular
from featherback.data.record_size import RawSize, RecordRoom, Unbounded
from featherback.data.source import STDIN, called
from featherback.errors import FeatherbackError, did_you_mean, near

_PIECE = 1 << 16  # bytes read at once
_MOST_NAMES = 1000  # of a folder, among which a misspelled one is looked for

Watch = Callable[[int], object]
"""Called with the number of bytes of each piece that is read."""


class Input:
    """A file, folder or standard input; nothing is opened before it is read. Its methods raise FeatherbackError."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        watch: Watch | None = None,
        title: str | None = None,
        room: RecordRoom | None = None,
    ) -> None:
        self.path, self._title = Path(path), title
        self.watch = watch or (lambda _: None)
        self.room = room or Unbounded()
        self.is_stdin = os.fspath(path) == STDIN

    @property
    def name(self) -> str:
        """What errors call it."""
        return self._title or called(os.fspath(self.path))

    def line(self, number: int) -> str:
        """What errors call a line, counted from 1; of examples given from Python each is one, which count from 0."""
        return f"{self.name}, line {number}" if self._title is None else f"{self.name}, example {number - 1}"

    @property
    def suffix(self) -> str:
        """The end of its name, in small letters: ".jsonl"; empty if it has none."""
        return "" if self.is_stdin else self.path.suffix.lower()

    @property
    def is_folder(self) -> bool:
        return not self.is_stdin and self.path.is_dir()

    @property
    def size(self) -> int:
        """Bytes; of a folder it is not known."""
        try:
            return os.fstat(_spooled(None)).st_size if self.is_stdin else self.path.stat().st_size
        except OSError as error:
            raise self.unreadable(error) from error

    def open(self) -> IO[bytes]:
        """A file object at the beginning."""
        try:
            return io.BufferedReader(_Again(_spooled(None))) if self.is_stdin else open_regular(self.path)
        except FileNotFoundError:
            raise FeatherbackError(f"The data file {self.path} does not exist.{self._beside()}") from None
        except OSError as error:
            raise self.unreadable(error) from error

    def _beside(self) -> str:
        """A file of a like name in the same folder, as a question."""
        try:
            with os.scandir(self.path.parent) as entries:
                names = sorted(entry.name for entry in islice(entries, _MOST_NAMES))
        except OSError:
            return ""
        return did_you_mean([str(self.path.parent / name) for name in near(self.path.name, names, 1)])

    def head(self) -> bytes:
        """The first bytes; FeatherbackError if there is none."""
        with self.open() as file:
            try:
                head = file.read(4096)
            except OSError as error:
                raise self.unreadable(error) from error
        if not head:
            raise FeatherbackError(
                "Standard input is empty." if self.is_stdin else f"The data file {self.path} is empty."
            )
        return head

    def pieces(self, size: int = _PIECE) -> Iterator[bytes]:
        """The content, so many bytes at a time."""
        return self._read(lambda file: file.read(size))

    def lines(self, most: int) -> Iterator[bytes]:
        """The lines, with their ends; those longer than `most` bytes in pieces."""
        return self._read(lambda file: file.readline(most))

    def whole_lines(self, most: int) -> Iterator[bytes | RawSize]:
        """The lines, with their ends; of those longer than `most` bytes only what they would take."""
        long: RawSize | None = None
        for piece in self.lines(most + 1):
            ends = piece.endswith(b"\n")
            if long is None and (ends or len(piece) <= most):
                yield piece
                continue
            long = long or RawSize()
            long.add(piece)
            if ends:
                yield long
                long = None
        if long is not None:
            yield long

    def _read(self, read: Callable[[IO[bytes]], bytes]) -> Iterator[bytes]:
        try:
            with self.open() as file:
                while piece := read(file):
                    self.watch(len(piece))
                    yield piece
        except OSError as error:
            raise self.unreadable(error) from error

    def unreadable(self, error: OSError) -> FeatherbackError:
        """What is to be said of a system's error."""
        what = self.name if self.is_stdin else f"the data file {self.path}"
        return FeatherbackError(f"Cannot read {what}: {error.strerror}.")


def keep_stdin(folder: Path) -> None:
    """Let standard input, unless it is a file, be an unnamed file in `folder` with the same content.

    Then it can be read several times, by this process and those that follow, and is gone with the last of them.
    """
    _spooled(folder)


def _spooled(folder: Path | None) -> int:
    """The descriptor of standard input, a file by now."""
    if stat.S_ISREG(os.fstat(0).st_mode):
        return 0
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            while piece := os.read(0, _PIECE):
                file.write(piece)
            file.seek(0)
            os.dup2(file.fileno(), 0)
    except OSError as error:
        raise FeatherbackError(f"Cannot keep standard input in a file: {error.strerror}.") from error
    return 0


class _Again(io.RawIOBase):
    """A file by its descriptor, whose own position, which others share, stays where it is."""

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
