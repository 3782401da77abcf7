"""directions.log: what a zeroth-order run learned, a few bytes a step, from which it can be replayed.

A direction depends on the run's seed, its step and its number in the step, so that its slope is all that is written.
Little-endian:

    magic     8 bytes
    origin    8 characters: `RunDirectory.origin`
    steps     step (u32), number of slopes (u32), learning rate (f64); the slopes (f64), batch after batch, in each
              the first direction first; CRC-32 of all that (u32)
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
"""Of a step: more were never written."""


class LoggedStep(NamedTuple):
    """One step of the optimiser, counted from 1."""

    step: int
    lr: float
    slopes: tuple[float, ...]


def step_bytes(slopes: int) -> int:
    """What a step of so many slopes takes."""
    return _STEP.size + slopes * _SLOPE.size + _CHECKSUM.size


class DirectionLog:
    """The log of a run, to be added to. FeatherbackError where it cannot be written."""

    def __init__(self, path: Path, origin: str) -> None:
        self.path, self._origin = path, origin

    def append(self, step: int, lr: float, slopes: Sequence[float]) -> None:
        """Add a step."""
        written = _STEP.pack(step, len(slopes), lr) + b"".join(map(_SLOPE.pack, slopes))
        append_bytes(self.path, written + _CHECKSUM.pack(zlib.crc32(written)))

    def sync(self) -> None:
        """Bring what was written to the disk."""
        append_bytes(self.path, sync=True)

    def rewind(self, step: int) -> int:
        """Keep the steps up to `step`, and begin anew for 0; the last step that is there."""
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
            except FeatherbackError:  # the process was killed while it wrote
                pass
        truncate(self.path, end)
        return last


def read_steps(path: Path, origin: str, last: int) -> Iterator[LoggedStep]:
    """Steps 1 to `last`; FeatherbackError where the log is damaged, of another run, or ends before."""
    with _opened(path, origin) as file:
        for before in range(last):
            found = _next(file, path, before)
            if found is None:
                raise FeatherbackError(f"{path} is cut short: it ends after step {before} of {last}; {_mend()}")
            yield found


def _opened(path: Path, origin: str) -> IO[bytes]:
    """The log behind its head."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise FeatherbackError(f"Cannot read {path}: {error.strerror}.") from error
    head = file.read(len(_MAGIC) + _ORIGIN)
    if head == _MAGIC + origin.encode():
        return file
    file.close()
    if head[: len(_MAGIC)] != _MAGIC or len(head) < len(_MAGIC) + _ORIGIN:
        raise FeatherbackError(f"{path} is not a log of directions.")
    raise FeatherbackError(f"{path} is of a run with other options or another model.")


def _next(file: IO[bytes], path: Path, before: int) -> LoggedStep | None:
    """The step after `before`; None at the end. FeatherbackError if it is cut short or damaged."""
    head = file.read(_STEP.size)
    if not head:
        return None
    if len(head) == _STEP.size:
        step, count, lr = _STEP.unpack(head)
        if step != before + 1 or count > _MOST_SLOPES:
            raise FeatherbackError(f"{path} is damaged after step {before}; {_mend()}")
        slopes, checksum = file.read(count * _SLOPE.size), file.read(_CHECKSUM.size)
        if len(checksum) == _CHECKSUM.size:
            if _CHECKSUM.unpack(checksum)[0] != zlib.crc32(head + slopes):
                raise FeatherbackError(f"{path} is damaged after step {before}; {_mend()}")
            return LoggedStep(step, lr, tuple(slope for (slope,) in _SLOPE.iter_unpack(slopes)))
    raise FeatherbackError(f"{path} is cut short: it ends within step {before + 1}; {_mend()}")


def _mend() -> str:
    return f"bring back a whole copy of it, or replay up to a step before with {argument('step')}."
