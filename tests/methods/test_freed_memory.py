"""Arrays that a frame has freed are never read again: here they are overwritten with NaN immediately."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from featherback import models
from featherback.data.batch import Batch
from featherback.engine.backend.arena import Arena
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA
from tests.methods.support import assert_close, assert_equal, with_plan
from tests.support import families
from tests.support.tiny_models import TINY_GEMMA3, tiny, write_tiny

TOKENS = 70
MODELS = {
    **families.MODELS,
    "gemma3, narrow heads": tiny(  # queries narrower than the residual stream, as in the published models
        TINY_GEMMA3, hidden_size=192, num_attention_heads=4, num_key_value_heads=2, head_dim=32
    ),
}
PLANS = {
    "whole": Plan(tokens=TOKENS, compute="fp32", mlp_tile=256, vocab_tile=48),
    "chunks": Plan(tokens=TOKENS, compute="fp32", mlp_tile=256, vocab_tile=48, chunk=32, keep_h=False),
}


@contextmanager
def _poisoned_frame(self: Arena) -> Iterator[None]:
    top = self._top
    try:
        yield
    finally:
        np.ndarray((self._top - top,), np.uint8, self._memory, top)[:] = 0xFF  # NaN in float32 and in bf16
        self._top = top


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", MODELS)
def test_what_was_given_back_is_not_read(
    name: str, plan: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path_factory.mktemp("freed") / "m.gguf"
    model = models.load(write_tiny(path, MODELS[name]))
    rng = np.random.default_rng(4)
    state = LoRA(model, 4).state()
    state = {
        key: (a if ".lora_A." in key else 0.1 * rng.standard_normal(a.shape)).astype(np.float32)
        for key, a in state.items()
    }
    batch = Batch.from_sequences([rng.integers(0, model.config.vocab_size, n) for n in (50, 20)])
    autodiff = with_plan(model, state, batch, PLANS["whole"], "mebp")  # frames that give nothing back
    clean = with_plan(model, state, batch, PLANS[plan])
    assert_close(clean, autodiff, 1e-5)
    monkeypatch.setattr(Arena, "frame", _poisoned_frame)
    assert_equal(with_plan(model, state, batch, PLANS[plan]), clean)
