"""The device of PyTorch, on PyTorch's CPU device: gradients of all dense families, stored types, streamed weights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import tiers
from tests.support.families import cases
from tests.support.oracle import ALL_TARGETS, random_adapter, reference, reference_model
from tests.support.tiny_models import TINY_LLAMA, TINY_WIDE, write_tiny

from benchmarks.random_blocks import random_blocks
from featherback import models
from featherback.engine import backend, kernels
from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.models.model import Model

torch = pytest.importorskip("torch")

from tests.methods.support import Result, assert_close, assert_equal, ours  # noqa: E402

from featherback.engine.backend.torch_device import TorchDevice, unpacking, weights  # noqa: E402
from featherback.engine.backend.torch_device import attention as torch_attention  # noqa: E402

BOUND = 1e-4  # relative, of each tensor's norm
FAMILIES = (
    "llama", "gemma2-untied", "qwen2-late-window", "wide-heads", "starcoder2", "phi3-window", "qwen3", "olmo2",
    "granite", "smollm3", "gemma3", "gemma2", "qwen2-one-kv-head", "mistral-window", "llama3-rope",
)  # fmt: skip
SEQUENCES = [np.random.default_rng(0).integers(0, 100, n).tolist() for n in (13, 1, 40)]


@pytest.fixture(autouse=True)
def chosen() -> Iterator[None]:
    """Compute on PyTorch's CPU device."""
    backend.use("cpu-torch")
    yield
    backend.use("cpu")


@pytest.fixture
def llama(tmp_path: Path) -> tuple[Model, dict[str, np.ndarray]]:
    path = write_tiny(tmp_path / "m.gguf", TINY_LLAMA, TensorType.Q4_0)
    return models.load(path), random_adapter(reference_model(path), 4, seed=1)


@pytest.mark.parametrize("name", tiers.some(FAMILIES, 6))
def test_gradients_equal_those_of_autograd(name: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", *cases()[name][:2])
    model, twin = models.load(path), reference_model(path)
    state = random_adapter(twin, 4, seed=1)
    wanted = reference(twin, state, SEQUENCES)
    truth = Result(wanted.loss, wanted.grads)
    found = ours(model, state, SEQUENCES)
    assert_close(found, truth, BOUND)
    assert_close(ours(model, state, SEQUENCES, method="mebp"), truth, BOUND)
    assert_equal(ours(model, state, SEQUENCES, weights="streamed"), found)
    assert_close(ours(model, state, SEQUENCES, chunk=16), truth, BOUND)


def test_a_fault_in_a_stored_type_is_found(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = ours(*llama, SEQUENCES)
    right = unpacking.UNPACK[TensorType.Q4_0]
    monkeypatch.setitem(unpacking.UNPACK, TensorType.Q4_0, lambda blocks: right(blocks) * 1.01)
    with pytest.raises(AssertionError):
        assert_close(ours(*llama, SEQUENCES), truth, BOUND)


def test_tiles_of_weights_and_of_scores_change_nothing(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ours(*llama, SEQUENCES)
    monkeypatch.setattr(weights, "TILE", 1)
    monkeypatch.setattr(torch_attention, "SCORES", 1)
    assert_close(ours(*llama, SEQUENCES), whole, 1e-5)


def test_shared_prompts(llama: Any) -> None:
    prompt = list(range(20))
    sequences = [[*prompt, *range(30, 37)], [*prompt, *range(50, 61)]]
    labels = [[-100] * 20 + each[20:] for each in sequences]
    found = ours(*llama, sequences, labels)
    backend.use("cpu")
    assert_close(found, ours(*llama, sequences, labels), BOUND)


def test_bf16_is_as_exact_as_on_the_cpu(llama: Any) -> None:
    exact = ours(*llama, SEQUENCES)
    found = ours(*llama, SEQUENCES, compute="bf16")
    backend.use("cpu")
    on_cpu = ours(*llama, SEQUENCES, compute="bf16")
    assert _distance(found, exact) < 2 * _distance(on_cpu, exact)


def _distance(found: Result, truth: Result) -> float:
    """Return the relative distance of all gradients together, in the Euclidean norm."""
    squares = sum(float(np.square(found.grads[name] - truth.grads[name]).sum()) for name in truth.grads)
    return float(np.sqrt(squares / sum(float(np.square(each).sum()) for each in truth.grads.values())))


@pytest.mark.parametrize("kind", unpacking.UNPACK)
def test_stored_types_have_the_same_bits_as_on_the_cpu(kind: TensorType) -> None:
    matrix = _random(kind, 7, 768)
    wanted = np.empty(matrix.shape, np.float32)
    kernels.dequantize(kernels.matrix(matrix), wanted)
    device = TorchDevice("cpu", "fp32")
    weight = device.matrix(matrix)
    for rows, cols in ((None, None), ((2, 5), (256, 768)), ((0, 1), (0, 256))):
        part = wanted[slice(*(rows or (None,))), slice(*(cols or (None,)))]
        out = device.arena(wanted.nbytes).take("out", part.shape)
        device.ops.dequantize(weight.slice(rows, cols), out)
        np.testing.assert_array_equal(out.tensor.numpy(), part)
    if kind.block_size > 1:  # columns within a block
        values = next(iter(weight.slice(cols=(8, 40)).tiles(torch.float32)))[1]
        np.testing.assert_array_equal(values.numpy(), wanted[:, 8:40])


def _random(kind: TensorType, rows: int, cols: int) -> Matrix:
    data = random_blocks(np.random.default_rng(0), kind, rows * cols // kind.block_size, 0.1)
    return Matrix(data.view(np.uint8).reshape(-1), kind, rows, cols)


def test_the_package_does_not_import_torch() -> None:
    code = (
        "import sys, featherback.api, featherback.engine.backend as b; b.of('fp32'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unsupported_choices_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FeatherbackError, match=r"Unknown device 'coda'.*cuda"):
        backend.use("coda")
    with pytest.raises(FeatherbackError, match="int16"):
        backend.of("int16")
    with pytest.raises(FeatherbackError, match="adapters only"):
        TorchDevice("cpu", "fp32").weights(None, "resident", 1, changing=True)
    path = write_tiny(tmp_path / "m.gguf", TINY_WIDE, TensorType.IQ4_XS)
    state = random_adapter(reference_model(path), 4, ALL_TARGETS)
    with pytest.raises(FeatherbackError, match=r"IQ4_XS \(supported: .*Q4_K"):
        ours(models.load(path), state, SEQUENCES)
