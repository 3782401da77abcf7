"""Read data files and standard input. Standard input can be read several times, like a file."""

from __future__ import annotations

import io
import os
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

from featherback.core.files import open_regular
from featherback.data.decoders.process import SharedFile
from featherback.data.layers import Unpacked, bytes_taken, decoded, encoding_of, is_binary, unpacked
from featherback.data.record_size import MOST_RECORD, RawSize, RecordRoom, Unbounded
from featherback.data.source import STDIN, display_name
from featherback.errors import FeatherbackError, did_you_mean, near

_PIECE = 1 << 16  # bytes read at once
_PEEKED = 1024  # bytes that show the encoding
_MOST_NAMES = 1000  # of a folder that are compared with a misspelt one

Watch = Callable[[int], object]
"""Called with the number of bytes of each piece that is read."""


class Input:
    """A file, a folder or standard input, opened only when it is read. Its methods raise FeatherbackError."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        watch: Watch | None = None,
        title: str | None = None,
        room: RecordRoom | None = None,
        table: Mapping[str, str] | None = None,
        me: tuple[str, ...] = (),
    ) -> None:
        self.path, self._title = Path(path), title
        self.watch = watch or (lambda _: None)
        self.room = room or Unbounded()
        self.is_stdin = os.fspath(path) == STDIN
        self.table = table or {}
        """What the user said about tables, as `source.TABLE_KEYS`."""
        self.me = me
        """The names of the person whose messages are the answers."""
        self.left_out: Counter[str] = Counter()
        """Number of messages, lines and the like that are not used, by kind."""

    @property
    def name(self) -> str:
        """Its name in error messages."""
        return self._title or display_name(os.fspath(self.path))

    def line(self, number: int) -> str:
        """The name of line `number` (from 1) in error messages. For examples from Python it is an index from 0."""
        return f"{self.name}, line {number}" if self._title is None else f"{self.name}, example {number - 1}"

    @property
    def suffix(self) -> str:
        """The suffix in lower case, such as ".jsonl"; empty if there is none. If it is compressed, the content's."""
        if self.is_stdin or self.is_folder:
            return "" if self.is_stdin else self.path.suffix.lower()
        found = self._unpacked()
        found.file.close()
        return Path(found.name).suffix.lower()

    @property
    def others(self) -> int:
        """Number of other files in the archive that it is read from."""
        if self.is_folder:
            return 0
        found = self._unpacked()
        found.file.close()
        return found.others

    @property
    def is_folder(self) -> bool:
        return not self.is_stdin and self.path.is_dir()

    @property
    def size(self) -> int:
        """Size in bytes; not meaningful for a folder."""
        try:
            return os.fstat(_stdin_file(None)).st_size if self.is_stdin else self.path.stat().st_size
        except OSError as error:
            raise self.unreadable(error) from error

    def open(self) -> IO[bytes]:
        """Open its content at the beginning, unpacked and as UTF-8 if it is text in another Unicode encoding."""
        file = self._unpacked().file
        head = file.peek(_PEEKED)[:_PEEKED]  # type: ignore[attr-defined]
        encoding = None if is_binary(head) else self.table.get("encoding") or encoding_of(head)
        return decoded(file, encoding, self.name) if encoding else file

    def _unpacked(self) -> Unpacked:
        file = self._open()
        try:
            return unpacked(file, self.name, self.size)
        except BaseException:
            file.close()
            raise

    def _open(self) -> IO[bytes]:
        """Open it as it is."""
        try:
            return io.BufferedReader(SharedFile(_stdin_file(None))) if self.is_stdin else open_regular(self.path)
        except FileNotFoundError:
            raise FeatherbackError(f"The data file {self.path} does not exist.{self._beside()}") from None
        except OSError as error:
            raise self.unreadable(error) from error

    def _beside(self) -> str:
        """Suggest a file with a similar name in the same folder."""
        try:
            with os.scandir(self.path.parent) as entries:
                names = sorted(entry.name for entry in islice(entries, _MOST_NAMES))
        except OSError:
            return ""
        return did_you_mean([str(self.path.parent / name) for name in near(self.path.name, names, 1)])

    def head(self) -> bytes:
        """Return the first 4096 bytes, or raise FeatherbackError if it is empty."""
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
        """Yield the content in pieces of `size` bytes."""
        return self._read(lambda file: file.read(size))

    def lines(self, most: int) -> Iterator[bytes]:
        """Yield the lines with their line ends; lines longer than `most` bytes come in pieces."""
        return self._read(lambda file: file.readline(most))

    def whole_lines(self, most: int, beside: int = 0) -> Iterator[bytes | RawSize]:
        """Yield the lines as `whole_lines` does."""
        return whole_lines(self.lines(most + 1), most, beside)

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """Open it and yield its descriptor, at the beginning. Raises FeatherbackError if it is compressed."""
        found = self._unpacked()
        found.file.close()
        if found.is_packed:
            raise FeatherbackError(f"{self.name} is compressed, but such files are only read unpacked. Unpack it.")
        if not self.is_stdin:
            with self._open() as file:
                yield file.fileno()
            return
        descriptor = os.dup(_stdin_file(None))  # a process that inherits it has another standard input
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @property
    def longest(self) -> int:
        """Most bytes that a record of it can have."""
        with self.open() as file:
            return min(MOST_RECORD, self.size) if bytes_taken(file) is None else MOST_RECORD

    def _read(self, read: Callable[[IO[bytes]], bytes]) -> Iterator[bytes]:
        try:
            with self.open() as file:
                reported = 0
                while piece := read(file):
                    taken = bytes_taken(file)
                    now = reported + len(piece) if taken is None else taken
                    self.watch(now - reported)
                    reported = now
                    yield piece
        except OSError as error:
            raise self.unreadable(error) from error

    def unreadable(self, error: OSError) -> FeatherbackError:
        """Return the error to raise for an OSError."""
        what = self.name if self.is_stdin else f"the data file {self.path}"
        return FeatherbackError(f"Cannot read {what}: {error.strerror}.")


def whole_lines(pieces: Iterable[bytes], most: int, beside: int = 0) -> Iterator[bytes | RawSize]:
    """Yield lines with their line ends; for a longer line than `most` bytes, only the memory that it needs (RawSize).

    `pieces`: lines with their line ends; longer lines come in pieces of `most` + 1 bytes. `beside`: as in RawSize.
    """
    long: RawSize | None = None
    for piece in pieces:
        ends = piece.endswith(b"\n")
        if long is None and (ends or len(piece) <= most):
            yield piece
            continue
        long = long or RawSize(beside=beside)
        long.add(piece)
        if ends:
            yield long
            long = None
    if long is not None:
        yield long


def spool_stdin(folder: Path) -> None:
    """Copy standard input to an unnamed file in `folder`, unless it is a file already.

    This process and its successors can then read it several times. The file is deleted when the last of them ends.
    """
    _stdin_file(folder)


def _stdin_file(folder: Path | None) -> int:
    """Return the descriptor of standard input, after copying it to a file if necessary."""
    if stat.S_ISREG(os.fstat(0).st_mode):
        return 0
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            while piece := os.read(0, _PIECE):
                file.write(piece)
            file.seek(0)
            os.dup2(file.fileno(), 0)
    except OSError as error:
        raise FeatherbackError(f"Cannot copy standard input to a temporary file: {error.strerror}.") from error
    return 0
