"""Absurd sizes, counts, names and nesting are refused before they take memory, by what the header says."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import featherback as fb
from featherback.core.files import read_json
from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.safetensors import SafetensorsFile
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.formats import peft
from featherback.models import load
from featherback.runs import parse
from featherback.runs.config import TrainConfig
from tests.support.tiny_models import write_tiny

MB = 10**6


@contextmanager
def at_most(nbytes: int) -> Iterator[None]:
    """Python and NumPy allocate no more than this meanwhile."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < nbytes
    finally:
        tracemalloc.stop()


# --- adapters ---


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> tuple[fb.Model, Path]:
    folder = tmp_path_factory.mktemp("adapter")
    model = load(write_tiny(folder / "m.gguf"))
    peft.FORMAT.save(fb.LoRA(model, rank=2), folder / "good")
    return model, folder / "good"


def _changed(good: Path, folder: Path, **entries: Any) -> Path:
    configuration = json.loads((good / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**configuration, **entries}))
    (folder / "adapter_model.safetensors").write_bytes((good / "adapter_model.safetensors").read_bytes())
    return folder


@pytest.mark.parametrize("rank", [100_000, 10**30])
def test_a_rank_that_the_file_does_not_have(adapter: tuple[fb.Model, Path], tmp_path: Path, rank: int) -> None:
    model, good = adapter
    with at_most(6 * MB), pytest.raises(FeatherbackError, match="does not fit"):
        formats.load(model, _changed(good, tmp_path, r=rank))


@pytest.mark.parametrize(
    "entries",
    [
        {"r": True},
        {"lora_alpha": 10**400},
        {"lora_alpha": float("inf")},
        {"lora_alpha": float("nan")},
        {"lora_alpha": [1]},
        {"use_dora": "x" * 100_000},
        {"r": None},
    ],
)
def test_numbers_that_are_none(adapter: tuple[fb.Model, Path], tmp_path: Path, entries: dict[str, Any]) -> None:
    model, good = adapter
    with pytest.raises(FeatherbackError) as refusal:
        formats.load(model, _changed(good, tmp_path, **entries))
    assert len(str(refusal.value)) < 500


# --- GGUF ---


def _gguf(path: Path, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> Path:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest)
    return path


def _key(number: int, value: bytes, kind: int = 8) -> bytes:
    name = f"k{number}".encode()
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


def _tensors(count: int) -> bytes:
    one = struct.pack("<IQIQ", 1, 1, 0, 0)
    return b"".join(struct.pack("<Q", 8) + f"{i:08}".encode() + one for i in range(count))


@pytest.mark.parametrize(
    ("tensors", "keys", "rest", "says"),
    [
        (70_000, 0, lambda: _tensors(70_000), "70000 tensors"),
        (0, 1 << 60, lambda: b"", "1152921504606846976 keys"),
        (0, 20_000, lambda: b"".join(_key(i, b"\0", 7) for i in range(20_000)), "20000 keys"),
        (
            0,
            3,
            lambda: b"".join(_key(i, struct.pack("<Q", 9 << 20) + bytes(9 << 20)) for i in range(3)),
            "a string in the header has 9437184 bytes",
        ),
        (0, 1, lambda: struct.pack("<Q", 2000) + b"k" * 2000 + bytes(99), "a string in the header has 2000 bytes"),
        (0, 1, lambda: _key(0, struct.pack("<IQ", 8, 5 << 20) + bytes(8 * (5 << 20)), 9), "more than 4194304 strings"),
    ],
)
def test_gguf(tmp_path: Path, tensors: int, keys: int, rest: Callable[[], bytes], says: str) -> None:
    path = _gguf(tmp_path / "m.gguf", tensors, keys, rest())
    with at_most(25 * MB), pytest.raises(FeatherbackError, match=says):
        GGUFFile(path)


def test_a_list_of_windows_for_layers_that_are_not_there(tmp_path: Path) -> None:
    flags = np.ones(20 * MB, bool)
    metadata = {"llama.attention.sliding_window": 7, "llama.attention.sliding_window_pattern": flags}
    path = write_tiny(tmp_path / "m.gguf", metadata=metadata)
    with at_most(2 * MB), pytest.raises(FeatherbackError, match="a list of 2 booleans"):
        load(path)


# --- JSON ---


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content, says in (
        (b"[" * 100_000, "nested too deeply"),
        (b"[" + b"[]," * (2 << 20) + b"1]", "has more than 4194304 bytes"),
        (b"9" * 5000, "not valid JSON"),
        (b"\xff", "not valid JSON"),
    ):
        path.write_bytes(content)
        with at_most(10 * MB), pytest.raises(FeatherbackError, match=says):
            read_json(path)


def test_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = b"{" + b",".join(b'"%d":{}' % i for i in range(500_000)) + b"}"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with at_most(10 * MB), pytest.raises(FeatherbackError, match="its header has"):
        SafetensorsFile(path)
    for numbers in ('"shape":[1e400],"data_offsets":[0,4]', f'"shape":[{10**50}],"data_offsets":[0,{4 * 10**50}]'):
        text = b'{"a":{"dtype":"F32",' + numbers.encode() + b"}}"
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
        with pytest.raises(FeatherbackError, match="malformed entry"):
            SafetensorsFile(path)


LLAMA = {
    "model_type": "llama",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 101,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "entries",
    [
        {"head_dim": 2**30, "rope_scaling": LLAMA3},
        {"head_dim": 2**30},
        {"head_dim": 2**30, "rope_scaling": YARN},
        {"rope_scaling": YARN | {"beta_slow": 1e-320}},
        {"rope_scaling": YARN | {"factor": 1e-40}},
        {"rope_scaling": YARN | {"attention_factor": 1e300}},
        {"rope_scaling": LLAMA3 | {"factor": 1e-320}},
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 100_000, "long_factor": []}},
        {"model_type": "smollm3", "num_hidden_layers": 10**9},
        {"model_type": "smollm3", "no_rope_layers": [[]] * 20_000},
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 10**400},
        {"rope_theta": 10**400},
        {"rms_norm_eps": 1e400},
        {"hidden_size": [[[]]]},
        {"model_type": "gemma3_text", "head_dim": 2**30, "sliding_window": 8},
        {"model_type": "mistral", "num_hidden_layers": 2**30},
        {"model_type": "x" * 100_000},
        {"quantization_config": {"a": "x" * 100_000}},
    ],
)
def test_configurations(tmp_path: Path, entries: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **entries}))
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    with at_most(5 * MB), pytest.raises(FeatherbackError) as refusal:
        load(tmp_path)
    assert len(str(refusal.value)) < 1000


# --- options ---


def test_an_amount_of_memory_beyond_numbers() -> None:
    for text in ("9" * 400, "9" * 400 + "GB", "2000000TB", "1e400"):
        with pytest.raises(FeatherbackError, match="--memory"):
            parse.memory(text)


def test_a_number_of_epochs_that_nobody_counts() -> None:
    with pytest.raises(FeatherbackError, match=r"--epochs is 1000000000; it must be .*at most 10000"):
        TrainConfig(model="m", data="d", out="o", epochs=10**9)


# --- from Python ---


def test_numbers_of_numpy_and_tuples(tmp_path: Path) -> None:
    model = fb.load(write_tiny(tmp_path / "m.gguf"))
    examples = [(1, 2, 3, 4), (5, 6), ([7, 8, 9], [-100, 8, 9]), (np.array([1, 2]), (1, 2))]
    run = fb.train(
        model,
        examples,  # type: ignore[arg-type]
        tmp_path / "run",
        steps=np.int64(2),
        rank=np.int32(2),
        learning_rate=np.float32(0.5),
        alpha=np.float64(4),
        targets=("q", "v"),
        seq_len=np.uint8(8),
        progress=False,
    )
    assert run.summary.steps == 2
    options = json.loads((tmp_path / "run" / "run.json").read_text())["configuration"]
    assert (options["learning_rate"], options["rank"], options["targets"]) == (0.5, 2, ["q_proj", "v_proj"])
    with pytest.raises(FeatherbackError, match="Example 0 is not a list of token ids"):
        fb.train(model, [[[1], [2, 3]]], tmp_path / "other", steps=1, progress=False)  # type: ignore[list-item]


def test_a_closed_model(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    model = fb.load(path)
    adapter = fb.LoRA(model, rank=2)
    model.close()
    for use in (
        lambda: fb.gradients(model, adapter, [1, 2, 3]),
        lambda: fb.train(model, [[1, 2, 3]], tmp_path / "run", steps=1, progress=False),
        lambda: fb.plan(model),
        lambda: model.layer(0),
    ):
        with pytest.raises(FeatherbackError, match=r"m\.gguf is closed; load it again"):
            use()
    assert not (tmp_path / "run").exists()
