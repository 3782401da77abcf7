"""directions.log: the slopes of a zeroth-order run, a few bytes per step, from which the run can be replayed.

A direction is determined by the run's seed, the step and its number within the step, so only its slope is written.
Layout, little-endian:

    magic     8 bytes
    origin    8 characters: `RunDirectory.origin`
    steps     step (u32), number of slopes (u32), learning rate (f64); the slopes (f64), batch after batch and
              within a batch in the order of its directions; CRC-32 of all these fields (u32)
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from featherback.core.files import append_bytes, atomic_file, open_regular, truncate
from featherback.core.naming import argument
from featherback.errors import FeatherbackError

NAME = "directions.log"
_MAGIC = b"FBDIRECT"
_STEP, _SLOPE, _CHECKSUM = struct.Struct("<IId"), struct.Struct("<d"), struct.Struct("<I")
_ORIGIN = 8
_MOST_SLOPES = 1 << 24
"""Maximum number of slopes in one step. A larger number means that the log is damaged."""


class LoggedStep(NamedTuple):
    """One step of the optimiser, counted from 1."""

    step: int
    lr: float
    slopes: tuple[float, ...]


def step_bytes(slopes: int) -> int:
    """Return the size in bytes of a step with this many slopes."""
    return _STEP.size + slopes * _SLOPE.size + _CHECKSUM.size


class DirectionLog:
    """Appends to the log of a run. Raises FeatherbackError if it cannot be written."""

    def __init__(self, path: Path, origin: str) -> None:
        self.path, self._origin = path, origin

    def append(self, step: int, lr: float, slopes: Sequence[float]) -> None:
        """Append a step."""
        written = _STEP.pack(step, len(slopes), lr) + b"".join(map(_SLOPE.pack, slopes))
        append_bytes(self.path, written + _CHECKSUM.pack(zlib.crc32(written)))

    def sync(self) -> None:
        """Flush the log to the disk."""
        append_bytes(self.path, sync=True)

    def rewind(self, step: int) -> int:
        """Delete the steps after `step` (all of them for 0) and return the last step that is left."""
        if step == 0 or not self.path.exists():
            with atomic_file(self.path) as file:
                file.write(_MAGIC + self._origin.encode())
            return 0
        last = 0
        with _opened(self.path, self._origin) as file:
            end = file.tell()
            try:
                while last < step and (found := _next(file, self.path, last)):
                    last, end = found.step, file.tell()
            except FeatherbackError:  # the process was killed while writing
                pass
        truncate(self.path, end)
        return last


def read_steps(path: Path, origin: str, last: int) -> Iterator[LoggedStep]:
    """Yield steps 1 to `last`. Raises FeatherbackError if the log is damaged, of another run, or too short."""
    with _opened(path, origin) as file:
        for before in range(last):
            found = _next(file, path, before)
            if found is None:
                raise FeatherbackError(f"{path} is truncated: it ends after step {before} of {last}; {_remedy()}")
            yield found


def _opened(path: Path, origin: str) -> IO[bytes]:
    """Open the log, check its header, and return it positioned at the first step."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise FeatherbackError(f"Cannot read {path}: {error.strerror}.") from error
    head = file.read(len(_MAGIC) + _ORIGIN)
    if head == _MAGIC + origin.encode():
        return file
    file.close()
    if head[: len(_MAGIC)] != _MAGIC or len(head) < len(_MAGIC) + _ORIGIN:
        raise FeatherbackError(f"{path} is not a directions.log file.")
    raise FeatherbackError(f"{path} belongs to a run with other options or another model.")


def _next(file: IO[bytes], path: Path, before: int) -> LoggedStep | None:
    """Read the step after `before`; None at the end. Raises FeatherbackError if it is truncated or damaged."""
    head = file.read(_STEP.size)
    if not head:
        return None
    if len(head) == _STEP.size:
        step, count, lr = _STEP.unpack(head)
        if step != before + 1 or count > _MOST_SLOPES:
            raise FeatherbackError(f"{path} is damaged after step {before}; {_remedy()}")
        slopes, checksum = file.read(count * _SLOPE.size), file.read(_CHECKSUM.size)
        if len(checksum) == _CHECKSUM.size:
            if _CHECKSUM.unpack(checksum)[0] != zlib.crc32(head + slopes):
                raise FeatherbackError(f"{path} is damaged after step {before}; {_remedy()}")
            return LoggedStep(step, lr, tuple(slope for (slope,) in _SLOPE.iter_unpack(slopes)))
    raise FeatherbackError(f"{path} is truncated: it ends within step {before + 1}; {_remedy()}")


def _remedy() -> str:
    return f"restore an intact copy, or replay up to an earlier step with {argument('step')}."
