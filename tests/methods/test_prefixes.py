"""Prefixes that sequences share pass the blocks once, without any other effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from featherback import methods
from featherback.data.batch import Batch
from featherback.methods.base import FIRST
from featherback.methods.memory.plan import Plan
from featherback.models.model import Model
from tests.methods.conftest import Twins
from tests.methods.support import Result, adapter_of, assert_close, assert_equal, ours
from tests.methods.test_exact_gradients import BOUND, draw
from tests.support.oracle import random_adapter, reference

WINDOWED = ("mistral-window", "qwen2-late-window", "ministral", "gemma2", "qwen3-untied-window")
SHARED = ("llama", "qwen2", "smollm3", "qwen3-yarn", "gemma3-wide-window", "granite", "olmo2", "phi3")
SEVERAL = 12, 1, 25, 40  # tokens behind the prefix


def chats(vocabulary: int, prefix: int = 50) -> tuple[list[list[int]], list[list[int]]]:
    """Return sequences with a common prefix, and one without it, in an order that separates those that share it.

    Two of them are supervised from the prediction of their first own token on.
    """
    common, *rest, alone = draw((prefix, *SEVERAL, 9), vocabulary)
    for i, own in enumerate(rest):
        own[0] = i  # the sequences differ from here on
    sequences = [common + rest[0], alone, *(common + own for own in rest[1:])]
    labels = [row.copy() for row in sequences]
    for i in (0, 3, 4):
        labels[i][: prefix + (i == 4)] = [-100] * (prefix + (i == 4))
    labels[2][:-1] = [-100] * prefix
    return sequences, labels


def sweep_of(model: Model, batch: Batch) -> Batch:
    """Return the batch as it passes the blocks."""
    method = methods.create("mesp", model, None, Plan.default(model.config, tokens=batch.n_tokens))
    with method._begin(batch) as sweep:
        return sweep.batch


@pytest.mark.parametrize("plan", [{}, {"chunk": 5}, {"chunk": 32}, {"chunk": 64}], ids=str)
@pytest.mark.parametrize("name", SHARED)
def test_gradients_are_autograds(all_twins: dict[str, Twins], name: str, plan: dict[str, Any]) -> None:
    twins = all_twins[name]
    sequences, labels = chats(twins.model.config.vocab_size)
    assert sweep_of(twins.model, Batch.from_sequences(sequences, labels)).n_tokens < 150
    state = random_adapter(twins.reference, 4, None, seed=1)
    truth = reference(twins.reference, state, sequences, labels)
    found = ours(twins.model, state, sequences, labels, mlp_tile=256, vocab_tile=48, **plan)
    assert_close(found, Result(truth.loss, truth.grads), BOUND)


def alone(model: Model, state: Any, sequences: list[list[int]], labels: list[list[int]], **how: Any) -> Result:
    """Return the plain batch's gradient: sequences one by one, weighted by their supervised tokens."""
    parts = [ours(model, state, [row], [label], **how) for row, label in zip(sequences, labels)]
    counts = np.array([sum(t != -100 for t in label[1:]) for label in labels], np.float64)
    weights = counts / counts.sum()
    grads = {
        name: sum(w * part.grads[name].astype(np.float64) for w, part in zip(weights, parts)) for name in parts[0].grads
    }
    return Result(float(sum(w * part.loss for w, part in zip(weights, parts))), grads)


KEPT = dict.fromkeys(("m", "gate", "up", "q", "k", "v", "o", "lse"), 2)


@pytest.mark.parametrize("plan", [{}, {"chunk": 16}, {"chunk": 48}, {"keep": KEPT}], ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma3-wide-window"])
def test_gradients_are_the_plain_batchs(all_twins: dict[str, Twins], name: str, plan: dict[str, Any]) -> None:
    model = all_twins[name].model
    state = random_adapter(all_twins[name].reference, 4, None, seed=2)
    sequences, labels = chats(model.config.vocab_size)
    assert_close(ours(model, state, sequences, labels, **plan), alone(model, state, sequences, labels), 1e-5)


def test_mezo_takes_the_same_losses(all_twins: dict[str, Twins]) -> None:
    """A slope is the difference of two losses divided by 2 epsilon, and so is the losses' error."""
    twins = all_twins["llama"]
    state = random_adapter(twins.reference, 4, None, seed=2)
    sequences, labels = chats(twins.model.config.vocab_size)
    shared = ours(twins.model, state, sequences, labels, method="mezo")
    plain = alone(twins.model, state, sequences, labels, method="mezo")
    assert shared.loss == pytest.approx(plain.loss, rel=1e-6)
    assert_close(shared, plain, 1e-3)


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_mebp_is_mesp(all_twins: dict[str, Twins], compute: str) -> None:
    for name in ("llama", "qwen3", "gemma3-wide-window"):
        twins = all_twins[name]
        state = random_adapter(twins.reference, 4, None, seed=2)
        sequences, labels = chats(twins.model.config.vocab_size)
        assert_equal(
            *(
                ours(twins.model, state, sequences, labels, compute, method, mlp_tile=256, vocab_tile=48)
                for method in ("mesp", "mebp")
            )
        )


@pytest.mark.parametrize("name", WINDOWED)
def test_a_window_that_hides_a_prefix_forbids_sharing(all_twins: dict[str, Twins], name: str) -> None:
    model = all_twins[name].model
    batch = Batch.from_sequences(*chats(model.config.vocab_size))
    assert sweep_of(model, batch) is batch


def test_factors_that_depend_on_the_length_forbid_sharing(all_twins: dict[str, Twins]) -> None:
    model = all_twins["phi4-mini"].model
    original = next(rotary.beyond[0] for rotary in model.rotaries if rotary.beyond is not None)
    short, long = (
        Batch.from_sequences(
            [[*range(length - 1), own] for own in (1, 2)], [[-100] * (length - 1) + [own] for own in (1, 2)]
        )
        for length in (original, original + 1)
    )
    assert sweep_of(model, short).n_tokens < short.n_tokens
    assert sweep_of(model, long) is long


def test_dropout_forbids_sharing(all_twins: dict[str, Twins]) -> None:
    """Each sequence has its own mask."""
    twins = all_twins["llama"]
    batch = Batch.from_sequences(*chats(twins.model.config.vocab_size))
    adapter = adapter_of(twins.model, random_adapter(twins.reference, 4, None, seed=2))
    adapter.dropout = 0.3
    plan = Plan.default(twins.model.config, tokens=batch.n_tokens)
    method = methods.create("mesp", twins.model, adapter, plan)
    with method._begin(batch, FIRST) as sweep:
        assert sweep.batch is batch
    with method._begin(batch) as sweep:  # evaluation drops nothing
        assert sweep.batch.n_tokens < batch.n_tokens
