"""Checkpoints: everything a run needs to continue as if it had never stopped.

A checkpoint is one file, `checkpoint-STEP.fbc`. It is written under a temporary name and renamed when it is on the
disk; the checkpoint before it is kept. Layout, little-endian:

    magic     8 bytes
    arrays    float32, row after row: the parameters and the optimiser's states
    state     a State as JSON
    footer    bytes of the state (u64), CRC-32 of everything before (u32), "END\\n"

Random numbers and the order of the data depend only on the seed, the step and the position in the data.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from featherback.core.decode import Count, Number, decode, encode
from featherback.core.files import atomic_file, open_regular
from featherback.core.files import checksum as file_checksum
from featherback.engine.host.paged import PIECE, PagedArray
from featherback.errors import FeatherbackError
from featherback.runs.record import HeldOutLoss

_NAME = re.compile(r"checkpoint-(\d+)\.fbc")
WEIGHTS = "weights-"
"""Prefix of a folder with a whole model's weights and optimiser states; the checkpoint's step follows."""
_MAGIC = b"FBCHECK2"
_FOOTER = struct.Struct("<QI4s")
_END = b"END\n"

Arrays = Mapping[str, PagedArray]


@dataclass
class Progress:
    """The progress of a run."""

    step: Count = 0
    position: tuple[Count, Count] = (0, 0)  #: epoch and batch of the data stream
    best_step: Count | None = None  #: step with the lowest held-out loss since training began
    best_loss: Number | None = None
    stale: Count = 0  #: evaluations since best_step
    evaluations: list[HeldOutLoss] = field(default_factory=list)

    def __post_init__(self) -> None:
        if (self.best_step is None) != (self.best_loss is None):
            raise FeatherbackError("best_step and best_loss must both be null, or both be numbers.")


@dataclass(frozen=True)
class State:
    """What a checkpoint holds besides the values of the arrays."""

    run: str  #: identifies the run: its fixed options (seed, schedule and others), its model and its data
    progress: Progress
    updates: list[Count]  #: of the optimiser, for each layer or each weight
    arrays: list[tuple[str, Count, Count]] = field(default_factory=list)  #: name, rows, length of a row
    files: Mapping[str, Count] = field(default_factory=dict)  #: file of a whole model's weights and states -> checksum


def save(run: Path, arrays: Arrays, state: State, keep: int = 2) -> Path:
    """Write the checkpoint of a run in `state`, whose `arrays` are set here, and return its file.

    Of the earlier checkpoints, the newest `keep` - 1 stay; all others are deleted, including later ones.
    Raises FeatherbackError if the file cannot be written; existing checkpoints are then untouched.
    """
    step = state.progress.step
    final = run / f"checkpoint-{step:06d}.fbc"
    content = json.dumps(encode(replace(state, arrays=_shapes(arrays)))).encode()
    with atomic_file(final) as file:
        checksum = _append(file, _MAGIC, 0)
        for array in arrays.values():
            for layer, first, part in _parts(array):
                array.read(layer, part, first)
                checksum = _append(file, part.data.cast("B"), checksum)
        checksum = _append(file, content, checksum)
        file.write(_FOOTER.pack(len(content), checksum, _END))
    before = sorted(other for other in _all(run) if other < step)
    stay = {step, *before[len(before) - (keep - 1) :]}
    for other, path in _all(run).items():
        if other not in stay and path.is_file():
            path.unlink(missing_ok=True)
    return final


def latest_step(run: Path) -> int:
    """Return the step of the newest checkpoint, even if it is damaged; 0 if there is none."""
    return max(_all(run), default=0)


def latest(run: Path) -> Path | None:
    """Return the newest checkpoint, even if it is damaged; None if there is none."""
    found = _all(run)
    return found[max(found)] if found else None


def _parts(array: PagedArray) -> Iterator[tuple[int, int, NDArray[np.float32]]]:
    """Yield (row, first element, a buffer for some elements) until all of `array` has passed."""
    buffer = np.empty(min(array.size, PIECE), "<f4")
    for layer in array.rows:
        for first in range(0, array.size, PIECE):
            yield layer, first, buffer[: array.size - first]


def nbytes(arrays: Arrays) -> int:
    """Return the size in bytes of a checkpoint of these arrays, without its state."""
    return sum(array.nbytes for array in arrays.values())


def held(run: Path) -> int:
    """Return the size in bytes of all checkpoints of a run."""
    return sum(path.stat().st_size for path in _all(run).values())


def discard(run: Path, first: int) -> None:
    """Delete the checkpoints of step `first` and later steps, the newest last."""
    for step, path in sorted(_all(run).items()):
        if step >= first and path.is_file():
            path.unlink(missing_ok=True)


def restore(run: Path, identity: str, arrays: Arrays, counts: int) -> tuple[State | None, list[str]]:
    """Fill `arrays` from the newest intact checkpoint of this run. `counts`: how many counts of updates it must have.

    Return its state (None if there is no checkpoint) and the reasons why newer ones were rejected. FeatherbackError
    if there are checkpoints but none can be used.
    """
    refused: list[str] = []
    for _, path in sorted(_all(run).items(), reverse=True):
        try:
            return _load(path, identity, arrays, counts), refused
        except FeatherbackError as error:
            refused.append(str(error).removesuffix("."))
    if refused:
        raise FeatherbackError(
            f"No checkpoint of {run} can be used: {'; '.join(refused)}; delete them to train from the start."
        )
    return None, []


def _load(path: Path, identity: str, arrays: Arrays, counts: int) -> State:
    """Fill `arrays` and return the state. Raises FeatherbackError if the file cannot be used."""
    try:
        with open_regular(path) as file:
            state = decode(State, _state(file, path.name), path.name)
            if state.run != identity:
                raise FeatherbackError(f"{path.name} belongs to a run with other options, another model or other data")
            if state.arrays != _shapes(arrays) or len(state.updates) != counts:
                raise FeatherbackError(f"{path.name} does not have the arrays of this run")
            file.seek(len(_MAGIC))
            checksum = zlib.crc32(_MAGIC)
            for array in arrays.values():
                for layer, first, part in _parts(array):
                    file.readinto(part.data.cast("B"))  # type: ignore[attr-defined]
                    checksum = zlib.crc32(part.data, checksum)
                    array.write(layer, part, first)
            rest = file.read()
            if zlib.crc32(rest[: -_FOOTER.size], checksum) != _FOOTER.unpack(rest[-_FOOTER.size :])[1]:
                raise FeatherbackError(f"{path.name} was changed while it was being read")
            return state
    except OSError as error:
        raise FeatherbackError(f"{path.name} cannot be read ({error.strerror})") from error
    except (ValueError, struct.error) as error:
        raise FeatherbackError(f"{path.name} has a state that this version cannot read") from error


def _shapes(arrays: Arrays) -> list[tuple[str, int, int]]:
    return [(name, len(array.rows), array.size) for name, array in arrays.items()]


def _state(file: IO[bytes], name: str) -> Any:
    """Check every byte of a checkpoint and return its state."""
    size = os.fstat(file.fileno()).st_size
    end = size - _FOOTER.size
    if end < len(_MAGIC) or file.read(len(_MAGIC)) != _MAGIC:
        raise FeatherbackError(f"{name} is not a checkpoint of this version of Featherback")
    file.seek(end)
    length, checksum, mark = _FOOTER.unpack(file.read(_FOOTER.size))
    if mark != _END or length > end - len(_MAGIC):
        raise FeatherbackError(f"{name} is damaged: its end is missing")
    file.seek(0)
    try:
        found = file_checksum(file, end)
    except EOFError:
        raise FeatherbackError(f"{name} was truncated while it was being read") from None
    if found != checksum:
        raise FeatherbackError(f"{name} is damaged: its checksum does not match its content")
    file.seek(end - length)
    return json.loads(file.read(length))


def _append(file: IO[bytes], content: bytes | memoryview, checksum: int) -> int:
    """Write `content` and return `checksum` continued over it."""
    file.write(content)
    return zlib.crc32(content, checksum)


def _all(run: Path) -> dict[int, Path]:
    """Return step -> checkpoint."""
    return {int(match[1]): path for path in run.iterdir() if (match := _NAME.fullmatch(path.name))}
