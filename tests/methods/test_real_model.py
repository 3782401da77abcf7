"""SmolLM2-135M's own weights: autograd in float64 is the truth, for us and for autograd in float32 and bf16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from featherback import models
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.models.model import Model
from tests.methods.support import Result, State, assert_close, assert_equal, autograd, cosines, errors, ours
from tests.support.oracle import random_adapter
from tests.support.tiers import some

TEXT = (
    "The lighthouse keeper counted the ships each evening, wrote their names in a long ledger, and lit the lamp at "
    "dusk. Nobody had asked for the list in thirty years. When the harbour office burned down, the ledger was the "
    "only record of what had passed the strait, and a young clerk rowed out to copy it by hand."
)
BOUND = 1e-4  # relative, of each tensor's norm
FIXED_MEDIAN, FIXED_WORST, FIXED_COSINE = 1e-3, 5e-3, 0.99999  # of int16; docs/decisions/fixed-point.md
LEAST_COSINE, MEDIAN_COSINE = 0.998, 0.9997  # of bf16; docs/decisions/bf16-accuracy.md has what was measured


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Model:
    return models.load(smollm2_path)


@pytest.fixture(scope="module")
def tokens(smollm2_path: Path) -> list[int]:
    return list(load_tokenizer(smollm2_path).encode(TEXT))


@pytest.fixture(scope="module")
def state(smollm2_reference: PreTrainedModel) -> State:
    drawn = random_adapter(smollm2_reference, 8)
    return {name: a * np.float32(0.02 if ".lora_B." in name else 1) for name, a in drawn.items()}


@pytest.fixture(scope="module")
def truth(smollm2_reference: PreTrainedModel, state: State, tokens: list[int]) -> Result:
    return autograd(smollm2_reference, state, tokens, torch.float64)


def test_fp32(model: Model, smollm2_reference: PreTrainedModel, state: State, tokens: list[int], truth: Result) -> None:
    found = ours(model, state, [tokens])
    assert_close(found, truth, BOUND)
    single = autograd(smollm2_reference, state, tokens, torch.float32)
    own_error = max(errors(single.grads, truth.grads).values())
    assert_close(found, single, BOUND + own_error)
    assert max(errors(found.grads, truth.grads).values()) < own_error, "we were closer to the truth than autograd"


@pytest.mark.full("four more passes of the real model in float64")
@pytest.mark.parametrize("lengths", [(129,), (40, 1, 3, 21)], ids=str)
def test_fp32_at_other_lengths(
    model: Model, smollm2_reference: PreTrainedModel, state: State, tokens: list[int], lengths: tuple[int, ...]
) -> None:
    """One sequence, or several packed ones. A single token predicts nothing."""
    text = tokens * 5
    starts = np.cumsum((0, *lengths))
    sequences = [text[start : start + length] for start, length in zip(starts, lengths)]
    parts = [
        (len(row) - 1, autograd(smollm2_reference, state, row, torch.float64)) for row in sequences if len(row) > 1
    ]
    targets = sum(count for count, _ in parts)
    truth = Result(
        sum(count * part.loss for count, part in parts) / targets,
        {name: sum(count * part.grads[name] for count, part in parts) / targets for name in state},
    )
    assert_close(ours(model, state, sequences), truth, BOUND)


@pytest.mark.full("the real model; the tiny ones in bf16 and int16 stand for it")
def test_bf16(model: Model, smollm2_reference: PreTrainedModel, state: State, tokens: list[int], truth: Result) -> None:
    found = ours(model, state, [tokens], compute="bf16")
    naive = errors(autograd(smollm2_reference, state, tokens, torch.bfloat16).grads, truth.grads)
    ratios = {name: error / naive[name] for name, error in errors(found.grads, truth.grads).items()}
    assert max(ratios.values()) <= 2
    assert np.median(list(ratios.values())) <= 0.6
    cosine = list(cosines(found.grads, truth.grads).values())
    assert min(cosine) >= LEAST_COSINE
    assert np.median(cosine) >= MEDIAN_COSINE


@pytest.mark.full("the real model; the tiny ones in bf16 and int16 stand for it")
def test_int16(model: Model, state: State, tokens: list[int], truth: Result) -> None:
    found = ours(model, state, [tokens], compute="int16")
    error = list(errors(found.grads, truth.grads).values())
    assert np.median(error) <= FIXED_MEDIAN
    assert max(error) <= FIXED_WORST
    assert min(cosines(found.grads, truth.grads).values()) >= FIXED_COSINE


@pytest.mark.parametrize("compute", some(["bf16", "int16", "fp32"], 1))
def test_mebp_is_mesp(model: Model, state: State, tokens: list[int], compute: str) -> None:
    sequences = [tokens[:30], tokens[30:]]
    assert_equal(*(ours(model, state, sequences, compute=compute, method=m) for m in ("mesp", "mebp")))
