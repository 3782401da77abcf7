"""The server's optimiser of `gradients`: the mean of nodes' gradients, and the steps of one machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featherback as fb
from featherback import models
from featherback.errors import FeatherbackError
from featherback.federated.settings import Federation
from featherback.federated.stepper import Stepper
from featherback.federated.strategies.base import Arrays
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.runs.config import TrainConfig
from tests.support.tiny_models import TINY_LLAMA, write_tiny

STEPS, NODES, RATE = 10, 3, 1e-2
LENGTHS = (7, 16, 30)
"""Tokens of a batch of each node: nodes have different weights."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return models.load(write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf", TINY_LLAMA))


def _config(model: Model, **options: Any) -> TrainConfig:
    train = {f"train.{name}": value for name, value in {"rank": 4, "lr": RATE, **options}.items()}
    return Federation.of({"model": str(model.path), "out": "/out", "strategy": "gradients", **train}).config(model)


def _batches(model: Model) -> list[list[list[int]]]:
    rng = np.random.default_rng(0)
    return [[rng.integers(0, model.config.vocab_size, size).tolist() for size in LENGTHS] for _ in range(STEPS)]


def _together(model: Model, adapter: Adapter, stepper: Stepper, batches: list[list[list[int]]]) -> Arrays:
    """Train on one machine, which accumulates the batches of all nodes in each step."""
    values = adapter.state()
    for batch in batches:
        adapter.load_state(values)
        _, gradient = fb.gradients(model, adapter, batch)
        values = stepper.step(values, gradient, RATE)
    return values


def _on_nodes(model: Model, adapter: Adapter, stepper: Stepper, batches: list[list[list[int]]], by: str) -> Arrays:
    """Train with a mean of the nodes' gradients, weighted by their tokens or by their examples."""
    values = adapter.state()
    for batch in batches:
        adapter.load_state(values)
        found = [fb.gradients(model, adapter, each)[1] for each in batch]
        weights = np.array([len(each) - 1 if by == "tokens" else 1 for each in batch], np.float64)
        mean = {
            name: sum(w * each[name] for w, each in zip(weights / weights.sum(), found, strict=True)).astype(np.float32)
            for name in values
        }
        values = stepper.step(values, mean, RATE)
    return values


def _distance(one: Arrays, other: Arrays) -> float:
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_ten_steps_on_nodes_are_those_of_one_machine(model: Model, optimizer: str) -> None:
    config, batches = _config(model, optimizer=optimizer), _batches(model)
    adapter = Adapter(model, config.form, 0)
    alone = _together(model, Adapter(model, config.form, 0), Stepper(model, config), batches)
    nodes = _on_nodes(model, adapter, Stepper(model, config), batches, "tokens")
    assert _distance(alone, nodes) < 1e-5
    assert _distance(alone, Adapter(model, config.form, 0).state()) > 1e-3


def test_weighting_by_examples_is_a_fault_that_is_found(model: Model) -> None:
    config, batches = _config(model), _batches(model)
    alone = _together(model, Adapter(model, config.form, 0), Stepper(model, config), batches)
    nodes = _on_nodes(model, Adapter(model, config.form, 0), Stepper(model, config), batches, "examples")
    assert _distance(alone, nodes) > 1e-4


def test_a_step_is_that_of_adamw(model: Model) -> None:
    """Compared with the formula in float64; the gradient is clipped to norm 1, as in `featherback train`."""
    config = _config(model)
    adapter, stepper = Adapter(model, config.form, 0), Stepper(model, config)
    values, rng = adapter.state(), np.random.default_rng(1)
    moments = {name: (np.zeros(each.shape), np.zeros(each.shape)) for name, each in values.items()}
    expected = {name: each.astype(np.float64) for name, each in values.items()}
    for step in range(1, 4):
        gradient = {name: rng.standard_normal(each.shape, np.float32) for name, each in values.items()}
        scale = 1 / np.sqrt(sum((each.astype(np.float64) ** 2).sum() for each in gradient.values()))
        values = stepper.step(values, gradient, RATE)
        for name, (m, v) in moments.items():
            g = scale * gradient[name].astype(np.float64)
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            expected[name] -= RATE * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    for name, each in values.items():
        np.testing.assert_allclose(each, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_an_optimiser_goes_on_where_another_server_stopped(model: Model) -> None:
    config, batches = _config(model), _batches(model)
    whole = _together(model, Adapter(model, config.form, 0), Stepper(model, config), batches)
    first, second = Stepper(model, config), Stepper(model, config)
    adapter = Adapter(model, config.form, 0)
    middle = _together(model, adapter, first, batches[:4])
    second.restore(first.state())
    adapter.load_state(middle)
    assert _distance(_together(model, adapter, second, batches[4:]), whole) == 0
    with pytest.raises(FeatherbackError, match="another optimizer"):
        Stepper(model, _config(model, optimizer="sgd")).restore(first.state())
