import os
from pathlib import Path

import numpy as np
import pytest

from featherback.engine import kernels
from featherback.engine.host.paged import PagedArray
from featherback.engine.host.positioned import write_at
from featherback.errors import FeatherbackError


@pytest.fixture(params=["ram", "file"])
def array(request: pytest.FixtureRequest, tmp_path: Path) -> PagedArray:
    return PagedArray(5, 1001, None if request.param == "ram" else tmp_path / "array.f32")


def test_starts_as_zeros(array: PagedArray) -> None:
    row = np.full(1001, np.nan, np.float32)
    array.read(4, row)
    assert not row.any()


def test_rows_come_back(array: PagedArray) -> None:
    rows = np.random.default_rng(0).standard_normal((5, 1001)).astype(np.float32)
    for layer in (3, 0, 4, 1, 2):
        array.write(layer, rows[layer])
    found = np.empty_like(rows)
    for layer in range(5):
        array.read(layer, found[layer])
    assert np.array_equal(found, rows)
    array.write(2, rows[0, ::-1])  # not contiguous
    array.read(2, found[2])
    assert np.array_equal(found[2], rows[0, ::-1])
    array.clear()
    array.read(3, found[3])
    assert not found[3].any()
    array.write(3, rows[1])
    array.read(3, found[3])
    array.read(2, found[2])
    assert np.array_equal(found[3], rows[1])
    assert not found[2].any()


def test_closed(array: PagedArray) -> None:
    array.flush()
    array.close()
    with pytest.raises((ValueError, TypeError)):
        array.read(0, np.empty(1001, np.float32))


def test_a_file_holds_the_rows(tmp_path: Path) -> None:
    array = PagedArray(3, 4, tmp_path / "x.f32")
    array.write(1, np.arange(4, dtype=np.float32))
    array.flush()
    stored = np.fromfile(tmp_path / "x.f32", np.float32).reshape(3, 4)
    assert stored.tolist() == [[0] * 4, [0, 1, 2, 3], [0] * 4]


@pytest.mark.memory_figures
def test_a_file_keeps_its_pages_out_of_the_process(tmp_path: Path) -> None:
    array = PagedArray(10, 1_000_000, tmp_path / "x.f32")
    row = np.ones(1_000_000, np.float32)
    before = kernels.memory_now()
    for layer in range(10):
        array.write(layer, row)
        array.read(layer, row)
    assert max(after - start for after, start in zip(kernels.memory_now(), before)) < 1_000_000


def test_rows_larger_than_a_system_call_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux moves at most 2 GiB per call; here a call moves 1001 bytes, which is not a whole number of floats."""
    pwrite, preadv, limit = os.pwrite, os.preadv, 1001
    monkeypatch.setattr("os.pwrite", lambda file, data, at: pwrite(file, data[:limit], at))
    monkeypatch.setattr("os.preadv", lambda file, buffers, at: preadv(file, [buffers[0][:limit]], at))
    array = PagedArray(3, 999, tmp_path / "x.f32")
    row, found = np.arange(999, dtype=np.float32), np.empty(999, np.float32)
    array.write(1, row)
    array.read(1, found)
    assert np.array_equal(found, row)
    assert np.array_equal(np.fromfile(tmp_path / "x.f32", np.float32).reshape(3, 999)[1], row)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_said() -> None:
    with open("/dev/full", "wb") as file, pytest.raises(OSError, match="No space left"):
        write_at(file.fileno(), np.ones(3, np.float32), 0)


def test_errors_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(FeatherbackError, match=r"Cannot create .*x\.f32: No such file or directory"):
        PagedArray(2, 3, tmp_path / "none" / "x.f32")
    array = PagedArray(2, 3, tmp_path / "x.f32")
    array.write(1, np.ones(3, np.float32))
    (tmp_path / "x.f32").write_bytes(b"")
    with pytest.raises(FeatherbackError, match="shorter than it was"):
        array.read(1, np.empty(3, np.float32))
