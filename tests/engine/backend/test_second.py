"""Training and decoding on a NumPy device and on PyTorch's: only the backend knows which device it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.backend.second import Second
from tests.infer.test_batching import _adapter
from tests.optim.paged import as_rows
from tests.support.tiny_models import TINY_LLAMA, write_tiny

from featherback import methods, models, optim
from featherback.data.batch import Batch
from featherback.engine import backend, kernels
from featherback.engine.backend.cpu import CPU
from featherback.engine.formats.types import TensorType
from featherback.engine.host.paged import PagedArray
from featherback.infer.batching import Batcher, Request
from featherback.infer.decoder import Decoder
from featherback.infer.layout import Layout
from featherback.infer.sampler import Sampler
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA
from featherback.models.model import Model
from featherback.optim import layerwise
from featherback.runs import checkpoint

HOST = {"ReadAhead", "drop_pages", "memory_now", "use", "threads", "set_threads", "current", "available"}
"""What is asked of the processor whatever computes: pages of files, threads, its name. Costs are counted besides."""
COMPUTED = [
    name for name in kernels.__all__
    if name.islower() and callable(getattr(kernels._native, name, None)) and name not in HOST
    and not name.endswith("_cost") and not name.startswith(("meter", "watch", "unwatch", "lost", "profile", "scratch"))
]  # fmt: skip


def _forbidden(*_: Any, **__: Any) -> None:
    raise AssertionError("a native kernel, or their device, was called")


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return models.load(write_tiny(tmp_path / "m.gguf", TINY_LLAMA, TensorType.F32))


@pytest.fixture(params=["numpy", "torch"])
def second(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Once called, everything runs on the second device, and no native kernel can run."""

    def chosen() -> None:
        made = Second if request.param == "numpy" else backend.use("cpu-torch").open
        monkeypatch.setattr(backend, "of", made)
        monkeypatch.setattr(CPU, "__init__", _forbidden)
        for name in COMPUTED:
            monkeypatch.setattr(kernels._native, name, _forbidden)
            monkeypatch.setattr(kernels, name, _forbidden)

    yield chosen
    backend.use()


def _train(model: Model, folder: Path, optimizer: str, **plan: Any) -> tuple[list[float], list[np.ndarray]]:
    """Compare losses and steps of an uninterrupted run with those of a run resumed from a checkpoint."""
    rng = np.random.default_rng(0)
    batch = Batch.from_sequences([rng.integers(0, model.config.vocab_size, n).astype(np.int32) for n in (13, 8)])
    adapter = LoRA(model, 4)
    gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
    rule = optim.create(optimizer, adapter.parameters, adapter.layout.slots)
    folder.mkdir()
    method = methods.create("mesp", model, adapter, Plan(tokens=32, compute="fp32", **plan), folder)
    arrays = {"parameters": adapter.parameters, **rule.states}
    losses, kept = [], []
    for step in (1, 2):
        gradients.clear()
        losses.append(method.gradients(batch, 1 / batch.n_targets, gradients))
        assert rule.step(gradients, 1e-2, optim.clip_scale(optim.global_norm(gradients), 1.0))
        kept += [as_rows(gradients), as_rows(adapter.parameters)]
        if step == 1:
            checkpoint.save(folder, arrays, checkpoint.State("", checkpoint.Progress(step), []))
            adapter.parameters.write(0, np.zeros(adapter.layer_size, np.float32))
            checkpoint.restore(folder, "", arrays, 0)
    losses.append(method.loss(batch))
    method.close()
    decoder = Decoder(model, adapter, 16, "fp32", Layout(), folder)
    kept += [decoder.forward([1, 2, 3, 4]), decoder.forward([5])]
    decoder.close()
    return losses, kept


@pytest.mark.parametrize(
    ("optimizer", "plan"),
    [
        ("adamw", {}),
        ("lion", {"chunk": 8, "checkpoints": "file", "weights": "by_matrix"}),
        ("adamw8bit", {"keep": {"gate": 1, "up": 1}, "weights": "streamed"}),
    ],
)
def test_a_step_a_checkpoint_and_a_token(
    model: Model, tmp_path: Path, second: Any, optimizer: str, plan: dict[str, Any]
) -> None:
    wanted = _train(model, tmp_path / "first", optimizer, **plan)
    second()
    found = _train(model, tmp_path / "second", optimizer, **plan)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    if optimizer == "adamw":  # the others step by sign or round, so the last bits of a gradient matter
        for ours, theirs in zip(found[1], wanted[1], strict=True):
            assert np.abs(ours - theirs).max() < 1e-5 * max(1, np.abs(theirs).max())


def test_answers_together(model: Model, second: Any) -> None:
    adapters = [None, _adapter(model, 3), _adapter(model, 5, rank=5)]
    requests = [Request([i + 1, 4, 2], Sampler(), 6, adapter=adapter) for i, adapter in enumerate(adapters)]

    def answers() -> list[list[int]]:
        batcher = Batcher(model, compute="fp32", capacity=16)
        try:
            return [[each.token for each in ticket] for ticket in [batcher.submit(request) for request in requests]]
        finally:
            batcher.close()

    wanted = answers()
    second()
    assert answers() == wanted


def test_a_device_that_is_named_elsewhere_is_found(
    model: Model, tmp_path: Path, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    second()
    monkeypatch.setattr(layerwise.backend, "of", CPU)
    with pytest.raises(AssertionError, match="a native kernel"):
        _train(model, tmp_path / "planted", "adamw")


def test_all_kernels_are_forbidden() -> None:
    assert {"linear", "attention", "adamw", "sgd", "cast", "gather_rows", "sum_squares", "dequantize"} <= set(COMPUTED)
