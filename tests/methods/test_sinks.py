"""Sinks and the bias of o in whole models: their own gradients. No family with sinks trains its weights yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import models
from featherback.engine.formats.types import TensorType
from featherback.methods.whole.trained_weights import WeightId
from featherback.models.architecture.names import GGUF_NAMES
from featherback.models.families import of_name
from featherback.models.families.base import by_window, rotary, silu_block
from featherback.models.model import Model
from tests.methods.test_exact_gradients import draw
from tests.methods.test_whole_weights import whole_gradients
from tests.support.families.qwen2 import TINY_QWEN2
from tests.support.tiny_models import write_tiny

CONFIG = replace(TINY_QWEN2, windows=(5, 0))
STEP = 0.03


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A Qwen 2 whose attention has sinks and a bias of o."""
    family = of_name("qwen2")
    names = GGUF_NAMES | {"sinks": "blk.{}.attn_sinks.weight", "o_bias": "blk.{}.attn_output.bias"}  # type: ignore[operator]
    turn = rotary(CONFIG)
    blocks = by_window(CONFIG, lambda window: silu_block(CONFIG, turn, window, sinks=True, output_bias=True))
    monkeypatch.setattr(type(family), "gguf_names", names)
    monkeypatch.setattr(type(family), "hf_names", names)
    monkeypatch.setattr(type(family), "blocks", lambda self, config: blocks)
    return models.load(write_tiny(tmp_path / "m.gguf", CONFIG, TensorType.F32))


@pytest.mark.parametrize("part", ["sinks", "o_bias"])
def test_by_finite_differences(model: Model, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    sequences = draw((19, 1, 11), CONFIG.vocab_size)
    _, gradients = whole_gradients(model, sequences)
    read, rng = Model._vector, np.random.default_rng(0)
    for layer in range(CONFIG.num_hidden_layers):
        found = gradients[WeightId(part, layer)].reshape(-1)
        along = np.sign(rng.standard_normal(found.shape)).astype(np.float32)

        def moved(step: float, layer: int = layer, along: Any = along) -> float:
            def vector(self: Model, which: str, name: str) -> Any:
                values = read(self, which, name)
                return values + np.float32(step) * along if name == self.stored_name(part, layer) else values

            with monkeypatch.context() as patch:
                patch.setattr(Model, "_vector", vector)
                return whole_gradients(model, sequences)[0]

        slope = (moved(STEP) - moved(-STEP)) / (2 * STEP)
        assert abs(found @ along) > 1e-4
        assert abs(slope - found @ along) < 0.01 * abs(found @ along) + 2e-5
