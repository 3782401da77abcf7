"""Damaged files: a clear refusal or a model that loads, and nothing else."""

import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN2, tiny, write_tiny

from featherback.architecture.config import ModelConfig
from featherback.errors import FeatherbackError
from featherback.models import load
from featherback.weights.gguf import GGUFFile
from featherback.weights.types import TensorType

SMALL = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 8, "vocab_size": 3}
CASES = {
    "llama": tiny(TINY_LLAMA, **SMALL, rope_factors=np.ones(4, np.float32)),
    "qwen2": tiny(TINY_QWEN2, **SMALL),
}
ROUNDS = 1500


def damaged(rng: np.random.Generator, good: bytes, header: int) -> bytes:
    """A prefix of the file, or the file with a few bytes or bits of its header changed."""
    how = rng.integers(3)
    if how == 0:
        return good[: rng.integers(len(good))]
    data = bytearray(good)
    for _ in range(rng.integers(1, 4)):
        at = rng.integers(header)
        data[at] = rng.choice([0, 1, 127, 128, 255]) if how == 1 else data[at] ^ (1 << rng.integers(8))
    return bytes(data)


def outcome(path: Path) -> str:
    """What came of loading `path`; anything but a model or a one-line FeatherbackError fails the test."""
    try:
        load(path).close()
    except FeatherbackError as error:
        return "refused" if "\n" not in str(error) else "garbled"
    return "loads"


@pytest.mark.parametrize("case", CASES)
def test_damaged_files(tmp_path: Path, case: str) -> None:
    path = write_small(tmp_path / "good.gguf", CASES[case])
    good, header = path.read_bytes(), min(info.offset for info in GGUFFile(path).tensors.values())
    rng, outcomes = np.random.default_rng(0), Counter[str]()
    target = tmp_path / "damaged.gguf"
    tracemalloc.start()
    for _ in range(ROUNDS):
        target.write_bytes(damaged(rng, good, header))
        outcomes[outcome(target)] += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    assert outcomes["loads"] > 5  # the fuzzer reaches both
    assert outcomes["refused"] > ROUNDS // 2
    assert outcomes["garbled"] == 0


def write_small(path: Path, config: ModelConfig) -> Path:
    types = {"": TensorType.Q4_0, "embed_tokens": TensorType.F16}
    return write_tiny(path, config, types, metadata={"words": ["a", "bb"] * 20, "numbers": np.arange(9)})
