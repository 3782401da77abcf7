"""The held-out loss is the mean over the supervised tokens: compared with transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import featherback as fb
from featherback.data.batch import Batch
from tests.support.oracle import reference_model
from tests.support.tiny_models import TINY_LLAMA

Example = tuple[list[int], list[int]]


def _examples() -> list[Example]:
    """Return examples of several lengths, of whose tokens a different share is supervised."""
    rng = np.random.default_rng(5)
    sizes = ((16, 12), (9, 2), (5, 1), (12, 11))
    tokens = [rng.integers(0, TINY_LLAMA.vocab_size, size).tolist() for size, _ in sizes]
    return [(each, [-100] * prompt + each[prompt:]) for each, (_, prompt) in zip(tokens, sizes)]


def _expected(model: Path, examples: Sequence[Example]) -> tuple[float, int]:
    """Return transformers' mean loss over supervised tokens (nats, float64), and their number."""
    reference = reference_model(model).double()
    losses = []
    for tokens, labels in examples:
        with torch.no_grad():
            logits = reference(torch.tensor([tokens])).logits[0, :-1].double()
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), reduction="none")
                      [torch.tensor(labels[1:]) != -100])  # fmt: skip
    joined = torch.cat(losses)
    return float(joined.mean()), len(joined)


def test_the_mean_is_over_supervised_tokens(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = _examples()
    loss, count = _expected(tiny_path, examples)
    found = fb.evaluate(fb.load(tiny_path), examples, compute="fp32")
    assert found.tokens == count
    assert found.loss == pytest.approx(loss, rel=1e-5)
    # The comparison catches a mean over all tokens.
    monkeypatch.setattr(Batch, "n_targets", property(lambda batch: len(batch.tokens)))
    assert fb.evaluate(fb.load(tiny_path), examples, compute="fp32").loss != pytest.approx(loss, rel=1e-2)
