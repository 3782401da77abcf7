"""A row of numbers for each token of a data set, in a file that outlives the process: the hidden states of a run.

Layout, little-endian, every section starting at a multiple of 4096 bytes:

    head       JSON, padded with spaces: the key, and the numbers below
    firsts     int64 (sequences,)       the place of each sequence's first token
    checksums  uint32 (tokens,)         CRC-32 of each row; 0: the row was not written
    rows       (tokens, width)          sequence after sequence; float32, or another type

A row is used only if its checksum is right. So a file that was left by a killed process, or damaged, loses single rows.
A row whose CRC-32 is 0 counts as not written, which happens to one row in four billion.

Nothing is mapped or kept in memory: rows are read and written with positioned calls.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.core import private
from featherback.core.system import positioned
from featherback.engine.host.positioned import read_at, write_at
from featherback.errors import FeatherbackError

RowNumbers = NDArray[np.int64]
FLOAT = "<f4"
_PAGE = 4096
_PIECE = 1 << 16
"""Bytes that are read at once while rows are checked."""


def file_bytes(sequences: int, tokens: int, width: int, kind: str = FLOAT) -> int:
    """Return the size in bytes of a file with `tokens` rows of `width` numbers of type `kind`."""
    return _sections(sequences, tokens)[-1] + tokens * width * np.dtype(kind).itemsize


def _sections(sequences: int, tokens: int) -> tuple[int, int, int]:
    """Return the offsets of the firsts, the checksums and the rows."""
    checksums = _PAGE + -(-8 * sequences // _PAGE) * _PAGE
    return _PAGE, checksums, checksums + -(-4 * tokens // _PAGE) * _PAGE


class TokenRows:
    """Rows (tokens, width) of numbers of type `kind`, by place. A sequence's tokens have consecutive places.

    `key`: what the values depend on. `lengths`: arrays with the lengths of all sequences, in order. An existing file
    with the same key and sizes is used again; any other is replaced, and then `replaced` is True. Raises OSError if the
    file cannot be made, for example because the disk is full.
    """

    def __init__(
        self, path: Path, key: str, sequences: int, tokens: int, width: int, lengths: Iterable[NDArray[Any]],
        kind: str = FLOAT,
    ) -> None:  # fmt: skip
        self.path, self.width, self._kind = path, width, np.dtype(kind)
        self.damaged = 0
        """Rows that `intact` found with a wrong checksum."""
        self._firsts, self._checksums, self._rows = _sections(sequences, tokens)
        head = json.dumps({"key": key, "sequences": sequences, "tokens": tokens, "width": width}).encode()
        self._head = head.ljust(_PAGE)
        size = file_bytes(sequences, tokens, width, kind)
        found = self._found(size)
        self.replaced = found is False
        if found is True:
            return
        with private.create_anew(path) as file:
            self._file = os.dup(file.fileno())
        try:
            positioned.allocate(self._file, size)
            place = 0
            at = self._firsts
            for some in lengths:
                ends = np.cumsum(some, dtype="<i8") + place
                write_at(self._file, np.ascontiguousarray(ends - some), at)
                place, at = int(ends[-1]), at + 8 * len(some)
            write_at(self._file, np.frombuffer(self._head, np.uint8), 0)  # last: before, the file has no key
        except BaseException:
            self.close()
            path.unlink(missing_ok=True)
            raise

    @property
    def _row_bytes(self) -> int:
        return self.width * self._kind.itemsize

    def _found(self, size: int) -> bool | None:
        """Open the existing file: True if it can be used again, False if it must be replaced, None if there is none."""
        try:
            with private.open_to_change(self.path) as file:
                if os.fstat(file.fileno()).st_size != size or file.read(_PAGE) != self._head:
                    return False
                self._file = os.dup(file.fileno())
                return True
        except FileNotFoundError:
            return None
        except OSError:  # not a file of its own: create_anew replaces it, or says why not
            return False

    def places(self, sequences: Iterable[int], lengths: Iterable[int]) -> RowNumbers:
        """Return the places of all tokens of these sequences, one sequence after the other."""
        found = []
        for sequence, length in zip(sequences, lengths):
            first = np.zeros(1, "<i8")
            if not read_at(self._file, first, self._firsts + 8 * int(sequence)):
                raise _truncated(self.path)
            found.append(np.arange(first[0], first[0] + length, dtype=np.int64))
        return np.concatenate(found)

    def intact(self, places: RowNumbers) -> bool:
        """Return whether the rows at all of these places were written and have the right checksum."""
        row = self._row_bytes
        most = max(1, _PIECE // row)
        buffer, whole = np.empty((most, self.width), self._kind), True
        for first, count in _runs(places):
            for start in range(first, first + count, most):
                part = min(most, first + count - start)
                sums = self._sums(start, part)
                if not read_at(self._file, buffer[:part], self._rows + start * row):
                    return False
                right = [zlib.crc32(values.data.cast("B")) == known for values, known in zip(buffer[:part], sums)]
                self.damaged += sum(bool(known) and not fits for known, fits in zip(sums, right))
                whole = whole and all(right) and all(sums)
        return whole

    def load(self, places: RowNumbers, out: NDArray[Any]) -> None:
        """Fill `out` (n, width) with the rows at `places` (n,), which must be intact."""
        at = 0
        for first, count in _runs(places):
            if not read_at(self._file, out[at : at + count], self._rows + first * self._row_bytes):
                raise _truncated(self.path)
            at += count

    def save(self, places: RowNumbers, rows: NDArray[Any]) -> None:
        """Write `rows` (n, width) to `places` (n,). Raises OSError if that fails; such rows are not intact."""
        at = 0
        for first, count in _runs(places):
            part = np.ascontiguousarray(rows[at : at + count], self._kind)
            sums = np.array([zlib.crc32(values.data.cast("B")) for values in part], "<u4")
            write_at(self._file, part, self._rows + first * self._row_bytes)
            write_at(self._file, sums, self._checksums + 4 * first)
            at += count

    def close(self) -> None:
        """Close the file. It stays on the disk."""
        os.close(self._file)

    def _sums(self, first: int, count: int) -> list[int]:
        sums = np.zeros(count, "<u4")
        return sums.tolist() if read_at(self._file, sums, self._checksums + 4 * first) else [0] * count


def _runs(places: RowNumbers) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of each stretch of consecutive places."""
    starts = np.flatnonzero(np.diff(places, prepend=places[:1] - 2) != 1)
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(places)]):
        yield int(places[start]), stop - start


def _truncated(path: Path) -> FeatherbackError:
    return FeatherbackError(f"{path} was truncated by another program. Delete it, and resume the run.")
