"""A cheap check whether a file has changed. It reads sizes, headers and samples, never a whole model.

It detects another model, another quantisation or fine-tune, other metadata, and a file that was truncated or partly
zeroed. It misses a change inside a tensor of more than 3 * SAMPLE bytes that leaves its beginning, middle and end as
they were.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from featherback.engine.formats.safetensors import CONFIG
from featherback.engine.formats.store import TensorStore
from featherback.errors import FeatherbackError

SAMPLE = 4096
"""Bytes of each of the three samples of a tensor."""
WHOLE = 64 << 20
"""Size in bytes up to which a file of unknown structure is read whole."""
PIECE = 1 << 16
"""Bytes read at once, and of each sample of a longer file."""

Stretch = tuple[int, int]
"""[begin, end) in a file."""


def of_store(store: TensorStore) -> str:
    """Return a checksum of a model: its configuration, the names, types and shapes of its tensors, and samples of each.

    Raises FeatherbackError if a file cannot be read.
    """
    checksum, path = 0, store.path
    if path.is_dir():
        checksum = _continued(path / CONFIG, _data_stretches(path / CONFIG), checksum)
    by_file: dict[Path, list[Stretch]] = {}
    for name, info in store.tensors.items():
        by_file.setdefault(store.file_of(name), []).append((info.offset, info.offset + info.nbytes))
        checksum = zlib.crc32(f"{name} {info.type.name} {info.shape}\n".encode(), checksum)
    if not path.is_dir() and path not in by_file:  # the first part of a split model, without tensors
        checksum = _continued(path, _data_stretches(path), checksum)
    for path, tensors in sorted(by_file.items(), key=lambda entry: entry[0].name):
        header = (0, min(begin for begin, _ in tensors))
        samples = (sample for tensor in sorted(tensors) for sample in _samples(*tensor))
        checksum = _continued(path, iter([header, *samples]), checksum)
    return f"{checksum:08x}"


def of_data(path: Path) -> str:
    """Return a checksum of a data file, or of all files in a folder: sizes and bytes.

    A file of more than WHOLE bytes contributes a thousand samples.
    """
    checksum = 0
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        checksum = zlib.crc32(bytes(file.relative_to(path)), checksum)
        checksum = _continued(file, _data_stretches(file), checksum)
    return f"{checksum:08x}"


def _data_stretches(path: Path) -> Iterator[Stretch]:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise FeatherbackError(f"Cannot read {path}: {error.strerror}.") from error
    step = PIECE if size <= WHOLE else max(PIECE, size // (WHOLE // PIECE))
    yield from ((begin, min(begin + PIECE, size)) for begin in range(0, size, step))
    yield max(0, size - PIECE), size


def _samples(begin: int, end: int) -> Iterator[Stretch]:
    if end - begin <= 3 * SAMPLE:
        yield begin, end
        return
    middle = (begin + end - SAMPLE) // 2
    yield from ((at, at + SAMPLE) for at in (begin, middle, end - SAMPLE))


def _continued(path: Path, stretches: Iterator[Stretch], checksum: int) -> int:
    """Continue a checksum over the size of a file and these stretches of it."""
    try:
        with open(path, "rb", buffering=0) as file:
            checksum = zlib.crc32(b"%d" % os.fstat(file.fileno()).st_size, checksum)
            for begin, end in stretches:
                for at in range(begin, end, PIECE):
                    file.seek(at)
                    checksum = zlib.crc32(file.read(min(PIECE, end - at)), checksum)
    except OSError as error:
        raise FeatherbackError(f"Cannot read {path}: {error.strerror}.") from error
    return checksum
