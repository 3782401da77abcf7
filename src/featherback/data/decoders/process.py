"""Read a binary table in a process with a memory limit.

A few kilobytes of a Parquet file can stand for gigabytes, and only its library knows how many. So the library runs
here, where the system limits the memory, and the rows leave as lines of JSON, which `containers.decoded` reads like
any other. The words after `python -m featherback.data.decoders.process` are a module of this package, the number of
rows to skip, 1 if rows are decoded one by one, which takes less memory, 1 if messages name options as flags, a sheet's
name or nothing, and a word for an open file.

Each line of standard output begins with a sign:

    >            the library is loaded; a line of standard input then says how many bytes the rows may take
    {...}        a row; [...] in a spreadsheet, whose first row has the names
    #BYTES       how much of the file was read
    !{...}       the end, because of a problem: {"problem": "memory" or "broken", "detail": text}
    .BYTES       the end; the most bytes that the rows took
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import date, time
from decimal import Decimal
from importlib import import_module
from typing import Any, Protocol

from featherback.core.naming import use_flags
from featherback.core.system import limits, positioned, processes
from featherback.data.decoders import BrokenTableError

SECONDS = 10
"""Most CPU time until the next row."""
_DETAIL = 200  # characters of a library's message


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
        count = positioned.read(self._descriptor, memoryview(buffer), self._at)
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        size = os.fstat(self._descriptor).st_size
        self._at = offset + {os.SEEK_SET: self._begin, os.SEEK_CUR: self._at, os.SEEK_END: size}[whence]
        return self._at - self._begin

    def tell(self) -> int:
        return self._at - self._begin


class Decoder(Protocol):
    """A module of this package."""

    def load(self) -> None:
        """Import the library, and everything that it imports later."""

    def rows(self, file: io.BufferedReader, start: int, alone: bool) -> Iterable[Mapping[str, Any]]:
        """Yield the rows from number `start` (from 0) on. `alone`: one at a time. Raises BrokenTableError."""


def main(kind: str, start: str, alone: str, flags: str, sheet: str, descriptor: str) -> None:
    """Write the rows of a file, after standard input has said how much memory they may take."""
    use_flags(flags == "1")
    decoder: Any = import_module(f"featherback.data.decoders.{kind}")  # a Decoder
    decoder.load()
    _say(b">")
    sys.stdout.flush()
    granted, before = int(sys.stdin.readline()), limits.status("VmRSS")
    limits.limit_data(granted)
    try:
        with io.BufferedReader(file := _Counted(processes.received(descriptor))) as content:
            reported = 0
            _allow_seconds()
            for row in decoder.rows(content, int(start), alone == "1", **({"sheet": sheet} if sheet else {})):
                if file.furthest > reported:
                    reported = file.furthest
                    _say(b"#%d" % reported)
                _say(_json(_plain(row)))
                _allow_seconds()
    except MemoryError:
        _end({"problem": "memory", "detail": ""})
    except BrokenTableError as error:
        _end({"problem": "broken", "detail": " ".join(str(error).split())[:_DETAIL]})
    else:
        _say(b".%d" % max(0, limits.status("VmHWM") - before))
    sys.stdout.flush()


class _Counted(SharedFile):
    """Knows how far the file was read."""

    furthest = 0

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = super().readinto(buffer)
        self.furthest = max(self.furthest, self.tell())
        return count


def _allow_seconds() -> None:
    """Allow some CPU time for the next row. A longer one ends the process (signals.TOO_LONG)."""
    limits.limit_time(SECONDS)


def _end(reason: dict[str, str]) -> None:
    _say(b"!" + _json(reason))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")


def _plain(value: Any) -> Any:
    """Return a value as JSON knows it. What has no value in JSON (nulls, NaN, bytes that are not text) is left out."""
    if isinstance(value, Mapping):
        return {str(key): plain for key, each in value.items() if (plain := _plain(each)) is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return str(value) if isinstance(value, (date, time, Decimal)) else value


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # what the library holds need not be freed piece by piece
