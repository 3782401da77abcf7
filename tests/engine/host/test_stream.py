"""Streamed weights: what is in memory, the effect of a damaged or vanishing file, and how reads are joined."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from tests.support.systems import cuts_short, keeps_names
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

from featherback import models
from featherback.engine import backend
from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.types import TensorType
from featherback.engine.host import stream
from featherback.engine.host.stream import BLOCK, WeightStream, buffer_bytes, runs, whole_blocks
from featherback.errors import FeatherbackError


def matrix_at(offset: int, nbytes: int, file: str = "a") -> Matrix:
    return Matrix(np.zeros(nbytes, np.uint8), TensorType.F32, 1, nbytes // 4, Path(file), offset)


def test_neighbours_are_read_together() -> None:
    first, near, far, other = (
        matrix_at(100, 5000),
        matrix_at(5200, 800),
        matrix_at(5 * BLOCK, 64),
        matrix_at(100, 64, "b"),
    )
    found = runs([far, near, other, first])
    assert [[id(m) for m in run] for run in found] == [[id(first), id(near)], [id(far)], [id(other)]]
    assert [whole_blocks(run) for run in found] == [(0, 2 * BLOCK), (5 * BLOCK, 6 * BLOCK), (0, BLOCK)]
    assert buffer_bytes([[far], [first, near]], far, rows=1) == 64 + 2 * BLOCK


def test_a_layer_is_read_once_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", tiny(TINY_LLAMA, num_hidden_layers=3)))
    calls = 0
    read = stream.read_exactly

    def counted(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(stream, "read_exactly", counted)
    source = WeightStream(model, backend.of("fp32"), rows=8)
    for index, then in ((0, 1), (1, 2), (2, 1), (1, 0), (0, None), (0, 1)):
        with source.layer(index, then):
            pass
    source.close()
    reads = [len(runs(list(model.layer(i).matrices.values()))) for i in range(3)]
    # 0, 1, 2 forward; 1 was let go for 2 only if both buffers were needed: 0 is, on the way back; 1 at the end.
    assert calls == reads[0] + reads[1] + reads[2] + reads[0]


@cuts_short
def test_a_file_cut_short_while_training(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", tiny(TINY_LLAMA, num_hidden_layers=3))
    source = WeightStream(models.load(path), backend.of("fp32"), rows=8)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(FeatherbackError, match=r"m\.gguf is shorter than it was"), source.layer(2):
        pass
    source.close()


@cuts_short
def test_an_error_does_not_stick(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", tiny(TINY_LLAMA, num_hidden_layers=3))
    whole = path.read_bytes()
    model = models.load(path)
    source = WeightStream(model, backend.of("fp32"), rows=8)
    os.truncate(path, len(whole) // 2)
    with pytest.raises(FeatherbackError), source.layer(2):
        pass
    path.write_bytes(whole)
    with source.layer(2) as weights:
        assert np.array_equal(weights.matrices["down_proj"].data, model.layer(2).matrices["down_proj"].data)
    source.close()


@cuts_short
def test_the_error_of_a_reading_ahead_is_its_own_layers(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", tiny(TINY_LLAMA, num_hidden_layers=3))
    whole = path.read_bytes()
    model = models.load(path)
    source = WeightStream(model, backend.of("fp32"), rows=8)
    with source.layer(0):
        os.truncate(path, len(whole) // 2)
    with source.layer(0, then=2):  # which fails, unseen
        pass
    path.write_bytes(whole)
    with source.layer(1) as weights:
        assert np.array_equal(weights.matrices["down_proj"].data, model.layer(1).matrices["down_proj"].data)
    source.close()


def test_a_closed_stream_says_so(tmp_path: Path) -> None:
    source = WeightStream(models.load(write_tiny(tmp_path / "m.gguf", TINY_LLAMA)), backend.of("fp32"), rows=8)
    source.close()
    with pytest.raises(ValueError, match="closed"), source.layer(0):
        pass


@keeps_names
def test_the_file_is_gone_before_it_is_opened(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", TINY_LLAMA)
    source = WeightStream(models.load(path), backend.of("fp32"), rows=8)
    path.unlink()
    with pytest.raises(FeatherbackError, match="Cannot read"), source.layer(0):
        pass
    source.close()


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="this system does not say what is mapped")
def test_nothing_of_the_file_stays_mapped(tmp_path: Path) -> None:
    """Norms are read through the map, which brings in pages around them: these must not grow with depth."""
    path = write_tiny(tmp_path / "m.gguf", tiny(TINY_LLAMA, num_hidden_layers=3))
    model = models.load(path)
    expected = [np.array(model.layer(i).vectors["input_layernorm"]) for i in range(3)]
    assert resident(path) > 0
    source = WeightStream(model, backend.of("fp32"), rows=8)
    assert resident(path) == 0
    for index in range(3):
        with source.layer(index) as weights:
            assert np.array_equal(weights.vectors["input_layernorm"], expected[index])
    source.close()


def resident(path: Path) -> int:
    """Return the resident kB of a file's map."""
    mappings = re.split(r"(?m)^(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text())
    return sum(int(found) for m in mappings if str(path) in m for found in re.findall(r"(?m)^Rss: +(\d+)", m))
