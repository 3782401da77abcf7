"""Read-ahead into the page cache: each reader has its own thread."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.support.systems import counts_memory

from featherback.engine import kernels
from featherback.engine.formats.mapping import FOLIO, MappedFile
from featherback.engine.host.machine import is_ram_disk

BYTES = 8 << 20
ask = pytest.mark.parametrize("way", ["file", "map"])


class Cold:
    """A file that starts outside the page cache, and can report which of its pages are in it."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(os.urandom(BYTES))
        self.map = MappedFile(path)  # this reads the first byte
        self.file = os.open(path, os.O_RDONLY)
        os.fsync(self.file)
        # Turn off the system's own read-ahead, here and in `holds`.
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_RANDOM)

    def holds(self, offset: int) -> bool:
        """Return whether the page at `offset` is in the page cache."""
        try:
            return os.preadv(self.file, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False

    def forget(self) -> bool:
        """Ask the system to drop the file from its cache."""
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
        return not any(self.holds(offset) for offset in range(0, BYTES, 1 << 20))

    def ask(self, ahead: kernels.ReadAhead, way: str, offset: int, nbytes: int) -> None:
        if way == "file":
            ahead.file(self.file, offset, nbytes)
        else:
            ahead.map(self.map.view(offset, nbytes))


@pytest.fixture
def cold(tmp_path: Path) -> Cold:
    if not (hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")):
        pytest.skip("this system has no call that tells which pages of a file are cached")
    if is_ram_disk(tmp_path):
        pytest.skip("a RAM disk's files are always in memory: there is nothing to read ahead")
    cold = Cold(tmp_path / "file")
    try:
        cold.holds(0)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip(f"this file system does not tell which pages are cached: {error.strerror}")
    # A page in use may stay for a moment.
    assert comes(cold.forget), "pages of a file that nothing reads stay in the page cache"
    return cold


def comes(true: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@ask
def test_what_is_asked_for_comes(cold: Cold, way: str) -> None:
    ahead = kernels.ReadAhead()
    cold.ask(ahead, way, 1 << 20, 3 << 20)
    assert comes(lambda: cold.holds((4 << 20) - 1))
    assert cold.holds(1 << 20)
    ahead.close()


@ask
def test_closing_one_leaves_the_other_at_work(cold: Cold, way: str) -> None:
    first, second = kernels.ReadAhead(), kernels.ReadAhead()
    cold.ask(first, way, 0, 4096)
    cold.ask(second, way, 1 << 20, 4096)
    assert comes(lambda: cold.holds(0) and cold.holds(1 << 20))
    first.close()
    cold.ask(second, way, 2 << 20, 4096)
    assert comes(lambda: cold.holds(2 << 20))
    del first
    cold.ask(second, way, 5 << 20, 4096)
    assert comes(lambda: cold.holds(5 << 20))
    second.close()
    second.close()
    cold.ask(second, way, 6 << 20, 4096)  # a closed one can be used again
    assert comes(lambda: cold.holds(6 << 20))


def resident() -> int:
    _, rss = kernels.memory_now()  # on a RAM disk, the pages of a map are in the footprint as well
    return rss


@counts_memory
def test_releasing_rows_of_a_matrix(tmp_path: Path) -> None:
    """Released rows leave memory and are read again when accessed. The process's own memory is unchanged."""
    rows, cols, row_bytes = 8192, 1024, 4096
    values = np.arange(rows * cols, dtype=np.float32).reshape(rows, cols)
    path = tmp_path / "file"
    path.write_bytes(bytes(row_bytes) + values.tobytes() + bytes(row_bytes))
    mapped = MappedFile(path)
    stored = mapped.view(row_bytes, rows * row_bytes)
    matrix = kernels.Matrix(stored, 0, rows, cols, stored.base)
    assert matrix.nbytes == rows * row_bytes
    before = resident()

    def touch() -> int:
        mapped.view(0, mapped.size)[::4096].sum()
        return resident() - before

    slack = 2 * FOLIO  # the pieces at either end may be dropped completely
    assert touch() >= rows * row_bytes
    part = matrix.slice(rows=(2048, 6144), cols=(256, 512))
    assert part.nbytes == 4096 * row_bytes
    for around, left in ((0, 4096), (1024 * row_bytes, 2048), (1 << 40, 0)):
        full = touch()
        part.release(around)
        gone = full - (resident() - before)
        assert abs(gone - (rows - left) * row_bytes) <= slack
    out = np.empty((4096, 256), np.float32)
    kernels.dequantize(part, out)
    np.testing.assert_array_equal(out, values[2048:6144, 256:512])

    own = values.copy()
    kernels.Matrix(own.view(np.uint8).reshape(-1), 0, rows, cols).release(1 << 20)
    np.testing.assert_array_equal(own, values)
