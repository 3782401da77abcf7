"""Training a whole model with default options learns."""

from __future__ import annotations

from pathlib import Path

import pytest

import featherback as fb
from tests.support import tiers
from tests.support.tiny_chat import write_messages, write_tiny_chat


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.mark.parametrize("optimizer", tiers.some([None, "adalomo", "apollo_mini", "lion"], 2))
def test_the_default_rate_learns_in_25_steps(chat_model: Path, tmp_path: Path, optimizer: str | None) -> None:
    """None: the default optimiser. At AdamW's former rate, 2e-5, the loss fell by less than a tenth."""
    data = write_messages(tmp_path / "sums.jsonl")
    named = {} if optimizer is None else {"optimizer": optimizer}
    run = fb.train(
        chat_model, data, tmp_path / "run", eval_data=data, train="full", steps=25, samples=0, progress=False, **named
    )
    assert run.summary.best_eval_loss < 0.85 * run.summary.first_eval_loss
    if optimizer is None:
        assert run.summary.best_eval_loss < 0.5 * run.summary.first_eval_loss
