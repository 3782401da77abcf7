"""Sparse MeZO against its description in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from featherback.data.batch import Batch
from featherback.engine.host.paged import PagedArray
from featherback.methods.base import FIRST, Draw
from featherback.methods.memory.plan import Plan
from featherback.methods.mezo import MeZOOptions
from featherback.methods.sparse_mezo import THRESHOLDS, SparseMeZO, SparseMeZOOptions
from featherback.models.adapter import LoRA
from tests.methods.conftest import Twins
from tests.methods.support import adapter_of
from tests.methods.test_exact_gradients import draw
from tests.methods.test_mezo import Setting, flat_gradient, method, rows, z
from tests.support.oracle import random_adapter


@pytest.fixture(params=["llama", "phi3", "smollm3"])
def setting(all_twins: dict[str, Twins], request: pytest.FixtureRequest) -> Setting:
    twins = all_twins[request.param]
    adapter = adapter_of(twins.model, random_adapter(twins.reference, 4, seed=3))
    batch = Batch.from_sequences(draw((30, 9), twins.model.config.vocab_size))
    return adapter, batch, Plan.default(twins.model.config, tokens=batch.n_tokens, compute="fp32")


def mask(adapter: LoRA, theta: np.ndarray, sparsity: float, measured: np.ndarray | None = None) -> np.ndarray:
    """Return m (layers, size): the smallest 1 - sparsity of each tensor, by thresholds of `measured` (or theta)."""
    found = np.zeros(theta.shape, bool)
    measured = theta if measured is None else measured
    for layer in range(len(theta)):
        for slot in adapter.layout.slots.layer(layer):
            part = slice(slot.start, slot.start + slot.size)
            magnitudes = np.sort(np.abs(measured[layer, part]))
            limit = magnitudes[max(1, round((1 - sparsity) * slot.size)) - 1] or np.inf
            found[layer, part] = np.abs(theta[layer, part]) <= limit
    return found


def write(array: PagedArray, values: np.ndarray) -> None:
    for layer, row in enumerate(values):
        array.write(layer, row)


@pytest.mark.parametrize("sparsity", [0.8, 0.5])
def test_estimate_is_numpys(setting: Setting, sparsity: float) -> None:
    adapter, batch, _ = setting
    options = SparseMeZOOptions(sparsity=sparsity, directions=2, epsilon=1e-3)
    estimator = method("sparse_mezo", setting, options)
    theta = rows(adapter.parameters)
    found = flat_gradient(estimator, setting, Draw(seed=4))[1]
    m = mask(adapter, theta, sparsity)
    whole = sum(s.size for layer in range(len(theta)) for s in adapter.layout.slots.layer(layer))
    assert m.sum() == pytest.approx((1 - sparsity) * whole, rel=0.01)
    plain, expected = method("mezo", setting), np.zeros_like(theta)
    for number in range(2):
        direction = z(adapter, 4, 0, number)
        losses = []
        for factor in (1e-3, -1e-3):
            moved = PagedArray(*theta.shape)
            write(moved, theta + np.float32(factor) * direction * m)
            losses.append(plain.loss(batch, moved))
        slope = (losses[0] - losses[1]) / batch.n_targets / 2e-3 / 2
        expected += np.float32(slope) * direction * m
    assert not found[~m].any()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7 * float(np.abs(expected).max()))
    assert np.array_equal(rows(adapter.parameters), theta)


def test_the_mask_is_of_the_unperturbed_weights(setting: Setting) -> None:
    """The step is so large that a mask of the perturbed values would differ, in both directions."""
    adapter, _, _ = setting
    estimator = method("sparse_mezo", setting, SparseMeZOOptions())
    assert isinstance(estimator, SparseMeZO)
    flat_gradient(estimator, setting)
    theta, m = rows(adapter.parameters), mask(adapter, rows(adapter.parameters), 0.8)
    for layer in range(len(theta)):
        out = theta[layer].copy()
        for factor in (100.0, -200.0, 100.0):
            before = out.copy()
            with estimator.resources.scratch.frame():
                estimator._add((1, 2, 3), factor, layer, out)
            assert np.array_equal(out != before, m[layer])


def test_thresholds_stay_and_the_mask_follows_the_weights(setting: Setting) -> None:
    adapter, _, _ = setting
    estimator = method("sparse_mezo", setting)
    theta = rows(adapter.parameters)
    first = flat_gradient(estimator, setting, Draw())[1]
    limits = rows(estimator.states[THRESHOLDS])
    moved = theta + np.float32(30) * np.abs(theta).max() * (first != 0)  # all that were small are large now
    write(adapter.parameters, moved)
    assert not flat_gradient(estimator, setting, Draw(step=1))[1].any()
    assert np.array_equal(rows(estimator.states[THRESHOLDS]), limits)


def test_measured_again(setting: Setting) -> None:
    adapter, _, _ = setting
    estimator = method("sparse_mezo", setting, SparseMeZOOptions(threshold_every=3))
    flat_gradient(estimator, setting, Draw())
    write(adapter.parameters, 2 * rows(adapter.parameters))
    before = rows(estimator.states[THRESHOLDS])
    flat_gradient(estimator, setting, Draw(step=2))
    assert np.array_equal(rows(estimator.states[THRESHOLDS]), before)
    flat_gradient(estimator, setting, Draw(step=3, first_token=7))  # a later batch of the step
    assert np.array_equal(rows(estimator.states[THRESHOLDS]), before)
    flat_gradient(estimator, setting, Draw(step=3))
    assert np.array_equal(rows(estimator.states[THRESHOLDS]), 2 * before)


def test_a_tensor_of_zeros_is_dense(all_twins: dict[str, Twins]) -> None:
    """B at the beginning: with a threshold of 0 it would move once and never again."""
    model = all_twins["llama"].model
    adapter = LoRA(model, 4)
    batch = Batch.from_sequences(draw((30,), model.config.vocab_size))
    setting = adapter, batch, Plan.default(model.config, tokens=batch.n_tokens)
    estimator = method("sparse_mezo", setting)
    for step in range(2):
        estimate = flat_gradient(estimator, setting, Draw(step=step))[1]
        write(adapter.parameters, rows(adapter.parameters) - np.float32(1e-3) * estimate)
        for layer in range(len(estimate)):
            for slot in adapter.layout.slots.layer(layer):
                share = np.count_nonzero(estimate[layer, slot.start : slot.start + slot.size]) / slot.size
                assert share == 1 if slot.name.endswith("B^T") else 0.15 < share < 0.25


def test_nothing_left_alone_is_mezo(setting: Setting) -> None:
    sparse = flat_gradient(method("sparse_mezo", setting, SparseMeZOOptions(sparsity=0.0)), setting, FIRST)
    dense = flat_gradient(method("mezo", setting, MeZOOptions()), setting, FIRST)
    assert sparse[0] == dense[0]
    assert np.array_equal(sparse[1], dense[1])
