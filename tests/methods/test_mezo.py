"""MeZO's estimate is the projection of the exact gradient on its direction, times that direction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from featherback import methods
from featherback.core.noise import normal
from featherback.data.batch import Batch
from featherback.engine.host.paged import PagedArray
from featherback.methods.base import FIRST, Draw, Method, Options
from featherback.methods.memory.plan import Plan
from featherback.methods.mezo import MeZOOptions
from featherback.models.adapter import LoRA
from tests.methods.conftest import Twins
from tests.methods.support import adapter_of
from tests.methods.test_exact_gradients import draw
from tests.support.oracle import random_adapter

Setting = tuple[LoRA, Batch, Plan]


@pytest.fixture
def setting(smooth_twins: Twins) -> Setting:
    twins = smooth_twins
    adapter = adapter_of(twins.model, random_adapter(twins.reference, 4, seed=3))
    batch = Batch.from_sequences(draw((30, 9), twins.model.config.vocab_size))
    return adapter, batch, replace(Plan.default(twins.model.config, tokens=batch.n_tokens, compute="fp32"))


def method(name: str, setting: Setting, options: Options | None = None) -> Method:
    adapter, _, plan = setting
    return methods.create(name, adapter.model, adapter, plan, options=options)


def flat_gradient(at_work: Method, setting: Setting, draw: Draw = FIRST) -> tuple[float, np.ndarray]:
    adapter, batch, _ = setting
    gathered = PagedArray(adapter.parameters.layers, adapter.layer_size)
    total = at_work.gradients(batch, 1 / batch.n_targets, gathered, draw)
    return total / batch.n_targets, rows(gathered)


def rows(array: PagedArray) -> np.ndarray:
    found = np.empty((array.layers, array.size), np.float32)
    for layer in range(array.layers):
        array.read(layer, found[layer])
    return found


def z(adapter: LoRA, seed: int, step: int, direction: int = 0) -> np.ndarray:
    return np.stack([normal((seed, step, direction, i), adapter.layer_size) for i in range(adapter.parameters.layers)])


@pytest.mark.parametrize(("seed", "step"), [(0, 0), (5, 3)])
def test_projection(setting: Setting, seed: int, step: int) -> None:
    exact_loss, exact = flat_gradient(method("mesp", setting), setting)
    estimator = method("mezo", setting, MeZOOptions(epsilon=1e-4))  # small: no curvature
    loss, estimate = flat_gradient(estimator, setting, Draw(seed, step))
    direction = z(setting[0], seed, step)
    slope = float(np.vdot(exact.astype(np.float64), direction))
    scale = float(np.linalg.norm(exact))  # the standard deviation of such a slope
    found = float(np.vdot(estimate, direction) / np.vdot(direction, direction))
    assert abs(found - slope) < 0.02 * scale
    np.testing.assert_allclose(estimate, np.float32(found) * direction, rtol=1e-4, atol=1e-6 * abs(found))
    assert loss == pytest.approx(exact_loss, rel=1e-3)


def test_several_directions_are_averaged(setting: Setting) -> None:
    _, exact = flat_gradient(method("mesp", setting), setting)
    estimator = method("mezo", setting, MeZOOptions(epsilon=1e-4, directions=3))
    estimate = flat_gradient(estimator, setting)[1].ravel().astype(np.float64)
    drawn = np.stack([z(setting[0], 0, 0, number).ravel() for number in range(3)]).astype(np.float64)
    slopes, residual, *_ = np.linalg.lstsq(drawn.T, estimate)
    assert residual < 1e-6 * np.vdot(estimate, estimate)
    expected = drawn @ exact.ravel() / 3
    np.testing.assert_allclose(slopes, expected, atol=0.02 * float(np.linalg.norm(exact)))


def test_parameters_are_left_as_they_were(setting: Setting) -> None:
    before = rows(setting[0].parameters)
    flat_gradient(method("mezo", setting), setting)
    assert np.array_equal(before, rows(setting[0].parameters))


def test_steps_seeds_and_numbers_draw_different_directions(setting: Setting) -> None:
    origins = [(seed, step, number) for seed in range(3) for step in range(3) for number in range(2)]
    drawn = {z(setting[0], *origin).tobytes() for origin in origins}
    assert len(drawn) == len(origins)
