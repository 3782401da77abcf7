"""Our streamed safetensors files, read by the safetensors package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from featherback.exports.safetensors_writer import write_safetensors


def test_the_package_reads_what_we_write(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tensors = {f"layer.{i}": random.standard_normal((i + 1, 5)).astype(np.float32) for i in range(4)}
    tensors["vector"] = np.arange(3, dtype=np.float32)
    tensors["turned"] = np.asfortranarray(tensors["layer.3"])
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {name: t.shape for name, t in tensors.items()}, iter(tensors.items()), {"format": "pt"})
    read = load_file(path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(read[name], tensor)
    assert path.stat().st_size % 4 == 0


@pytest.mark.parametrize("wrong", [("b", np.zeros(2, np.float32)), ("a", np.zeros(3, np.float32)), ("a", np.zeros(2))])
def test_what_was_not_announced_is_not_written(tmp_path: Path, wrong: tuple[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="expected a"):
        write_safetensors(tmp_path / "x", {"a": (2,)}, iter([wrong]))
    assert not list(tmp_path.iterdir())
