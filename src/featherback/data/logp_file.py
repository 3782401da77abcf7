"""A file of log-probabilities, written batch by batch, so that a process that is killed loses at most one batch.

Layout, little-endian:

    header   64 bytes: magic, version, CRC-32 of the version, and the key: a checksum of what the values depend on
    blocks   each: int64 index of the first example, int64 count, float64 (count, 2), CRC-32 of these, 4 bytes of zeros
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from featherback.core import private
from featherback.core.files import json_checksum, open_regular
from featherback.errors import FeatherbackError

MAGIC = b"FBLOGPS\0"
VERSION = 1
KEY_BYTES = 32
_HEADER = struct.Struct(f"<8sII{KEY_BYTES}s16x")
_BLOCK = struct.Struct("<qq")
_CHECK = struct.Struct("<I4x")
_MOST = 1 << 20  # examples in a block

Pairs = npt.NDArray[np.float64]  # (n, 2)
_GIVEN = ".given"


def key_of(**facts: Any) -> bytes:
    """Return the key of values that depend on these facts."""
    return json_checksum(dict(sorted(facts.items()))).encode().ljust(KEY_BYTES, b"\0")


def given_path(tokens: Path) -> Path:
    """Return the file beside a token file that holds the values given in the data."""
    return tokens.with_name(tokens.name.removesuffix(".tokens").removesuffix(".whole") + _GIVEN)


def given_file(tokens: Path, count: int) -> LogpFile:
    """Return the values given in the data for the `count` examples of a token file."""
    return LogpFile(given_path(tokens), key_of(given=True), count)


class LogpFile:
    """The log-probabilities of two answers of each of `count` examples. Values with another key are not read."""

    def __init__(self, path: Path, key: bytes, count: int) -> None:
        self.path, self._key, self._count = path, key, count

    def read(self) -> Pairs:
        """Return the values (n, 2) of the first n examples: those before the end, or before the first damaged block."""
        return self._read()[0]

    def read_all(self) -> Pairs:
        """Return the values of all examples. Raises FeatherbackError if some are missing."""
        found = self.read()
        if len(found) < self._count:
            raise FeatherbackError(
                f"{self.path} lacks the reference log-probabilities of {self._count - len(found)} of {self._count} "
                "examples. Resume the run from the command line or with train(resume=True), which computes them."
            )
        return found

    def append(self, first: int, values: Pairs) -> None:
        """Add the values of the examples from `first` on, which must be the first that are missing."""
        block = _BLOCK.pack(first, len(values)) + np.ascontiguousarray(values, "<f8").tobytes()
        try:
            self._out.write(block + _CHECK.pack(zlib.crc32(block)))
            self._out.flush()
        except OSError as error:
            raise FeatherbackError(f"Cannot write {self.path}: {error.strerror}.") from error

    def __enter__(self) -> LogpFile:
        """Open the file for `append`, behind its last good block."""
        try:
            _, end = self._read()
            if end == 0:
                self.path.unlink(missing_ok=True)
                self._out = private.create_anew(self.path)
                self._out.write(_HEADER.pack(MAGIC, VERSION, zlib.crc32(bytes([VERSION])), self._key))
                self._out.flush()
            else:
                self._out = private.open_to_append(self.path)
                self._out.truncate(end)
        except OSError as error:
            raise FeatherbackError(f"Cannot write {self.path}: {error.strerror}.") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._out.flush()
        os.fsync(self._out.fileno())
        self._out.close()

    def _read(self) -> tuple[Pairs, int]:
        """Return the good values, and the number of bytes that hold them with the header; 0 if there is no header."""
        found, end = [np.empty((0, 2))], 0
        try:
            for values, end in self._blocks():  # noqa: B007 - the last end is returned
                found.append(values)
        except FileNotFoundError:
            return found[0], 0
        except OSError as error:
            raise FeatherbackError(f"Cannot read {self.path}: {error.strerror}.") from error
        return np.concatenate(found), end

    def _blocks(self) -> Iterator[tuple[Pairs, int]]:
        """Yield the values of the header (none) and of each good block, with the position behind it."""
        with open_regular(self.path) as file:
            header = file.read(_HEADER.size)
            if header != _HEADER.pack(MAGIC, VERSION, zlib.crc32(bytes([VERSION])), self._key):
                return
            done = 0
            yield np.empty((0, 2)), file.tell()
            while len(head := file.read(_BLOCK.size)) == _BLOCK.size:
                first, count = _BLOCK.unpack(head)
                if first != done or not 0 < count <= min(_MOST, self._count - done):
                    return
                body, check = file.read(16 * count), file.read(_CHECK.size)
                if len(body) < 16 * count or check != _CHECK.pack(zlib.crc32(head + body)):
                    return
                done += count
                yield np.frombuffer(body, "<f8").reshape(count, 2).astype(np.float64), file.tell()
