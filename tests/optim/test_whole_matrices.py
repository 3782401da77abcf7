"""Rules on matrices of several tiles: 20 steps against references, readings, states, memory."""

from __future__ import annotations

import gc
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from featherback import optim
from featherback.engine.backend.counting import Blank, Counting, Ledger
from featherback.engine.backend.device import Device
from featherback.nn.slots import TABLE
from featherback.optim.layerwise import HeldTensor
from featherback.optim.rule import StepArgs, tile_rows
from tests.optim.adalomo import adalomo
from tests.optim.apollo import apollo_full, apollo_mini
from tests.optim.mlorc import mlorc
from tests.optim.per_tensor import Change, Whole, adafactor, by_torch, lion, lomo
from tests.optim.steps import SHAPES, close, gradient, made, tensor_of

STEPS, SCALE = 20, 0.5
TRUTHS: dict[str, tuple[Change, float]] = {
    "adafactor": (adafactor, 0.2),
    "adalomo": (adalomo, 0.1),
    "adamw": (partial(by_torch, torch.optim.AdamW), 0.01),
    "apollo": (apollo_full, 0.01),
    "apollo_mini": (apollo_mini, 0.01),
    "lion": (lion, 0.01),
    "lomo": (lomo, 0.1),
    "mlorc": (mlorc, 0.01),
    "sgd": (partial(by_torch, torch.optim.SGD), 0.05),
}
"""Rule -> its reference, and a learning rate with which 20 steps change weights strongly."""
READ_TWICE = {"adafactor", "adalomo", "apollo", "apollo_mini", "mlorc"}
CANCELS = {"mlorc"}
"""There, a second moment is a difference: where it is near 0, a step depends on its last bits."""


def _run(name: str, shape: tuple[int, int], role: str = "matrix") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values before; ours and the reference's after."""
    change, lr = TRUTHS[name]
    rule, settings = made(name)
    tensor = tensor_of(rule, shape, role)
    before = tensor.all_values.copy()
    whole = Whole(torch.from_numpy(before).double(), tensor.key)
    more = {"role": role} if role != "matrix" else {}
    for step in range(1, STEPS + 1):
        tensor.all_gradient[...] = gradient(shape, step, name not in CANCELS)
        rule.update(tensor, StepArgs(step, lr * (1 + step / STEPS), SCALE))
        whole.g, whole.step = torch.from_numpy(tensor.all_gradient * SCALE).double(), step
        change(whole, lr * (1 + step / STEPS), **settings, **more)
    return before, tensor.all_values, whole.p.numpy()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", TRUTHS)
def test_twenty_steps(name: str, shape: str) -> None:
    close(*_run(name, SHAPES[shape]), within=1 - 1e-4 if name in CANCELS else 1.0)


@pytest.mark.parametrize("name", ["apollo", "apollo_mini"])
def test_tables_have_adam(name: str) -> None:
    close(*_run(name, (300, 40), TABLE))


def test_every_rule_is_here_or_has_a_test_of_its_own() -> None:
    assert {*TRUTHS, "adamw8bit"} == set(optim.RULES.names)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", optim.RULES.names)
def test_gradients_are_read_seldom_and_values_changed_once(name: str, shape: str) -> None:
    rule, _ = made(name)
    tensor = tensor_of(rule, SHAPES[shape])
    rule.update(tensor, StepArgs(1, 0.1))
    tiles = -(-SHAPES[shape][0] // tile_rows(SHAPES[shape]))
    assert tiles > 1 or shape == "vector"
    sizes = name in ("adafactor", "adalomo")  # they look at how large weights are before they change them
    twice = name in READ_TWICE and (sizes or shape != "vector")
    assert tensor.readings == 1 + twice
    assert tensor.openings == tiles
    assert tensor.looks == tiles * sizes


@pytest.mark.parametrize(
    ("name", "floats"),
    [
        ("lomo", 0),
        ("lion", 896 * 4864),
        ("adalomo", 896 + 4864),
        ("adafactor", 896 + 4864),
        ("apollo", 2 * 896 // 4 * 4864 + 1),
        ("apollo_mini", 2 * 4864 + 1),
        ("mlorc", 2 * 4 * (896 + 4864)),
    ],
)
@pytest.mark.parametrize("shape", [(896, 4864), (4864, 896)])
def test_states_are_as_small_as_the_papers_say(name: str, floats: int, shape: tuple[int, int]) -> None:
    assert sum(optim.RULES[name]().state_sizes(shape).values()) == floats


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", optim.RULES.names)
def test_memory_is_what_is_counted(name: str, shape: str) -> None:
    rule, _ = made(name)
    tensor = tensor_of(rule, SHAPES[shape])
    tensor.all_gradient[...] = gradient(SHAPES[shape], 1)
    rule.update(tensor, StepArgs(1, 0.01))  # what is imported and kept
    gc.collect()
    tracemalloc.start()
    rule.update(tensor, StepArgs(2, 0.01))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    counted = Ledger()
    blanks = {state: Blank(values.shape, values.dtype) for state, values in tensor.states.items()}
    values = Blank(SHAPES[shape], np.dtype(np.float32))
    rule.update(HeldTensor(Device(Counting("fp32"), counted), values, values, blanks, (3, 1)), StepArgs(1, 0.01))
    scratch: Any = tensor.on.scratch
    assert scratch.high_water == counted.high_water
    # What NumPy takes beside it: of a decomposition or of rounding, less than the room that is counted for it.
    rooms = [e.nbytes for e in counted.entries if e.name.startswith("room for")]
    assert peak <= 300_000 + max(rooms, default=0)


@pytest.mark.parametrize("name", ["apollo", "apollo_mini", "mlorc"])
def test_random_numbers_come_from_seed_and_key(name: str) -> None:
    rule, _ = made(name)

    def after(seed: int, key: tuple[int, ...]) -> np.ndarray:
        tensor = tensor_of(rule, (60, 50))
        tensor = HeldTensor(tensor.on, tensor.all_values, tensor.all_gradient, tensor.states, key)
        for step in (1, 2):
            tensor.all_gradient[...] = gradient((60, 50), step)
            rule.update(tensor, StepArgs(step, 0.01, 1.0, seed))
        return tensor.all_values

    np.testing.assert_array_equal(after(5, (1,)), after(5, (1,)))
    assert np.any(after(5, (1,)) != after(6, (1,)))
    assert np.any(after(5, (1,)) != after(5, (2,)))


@pytest.mark.parametrize("name", TRUTHS)
def test_gradients_that_are_zero_change_nothing(name: str) -> None:
    rule = optim.OPTIONS.make(name, {})
    tensor = tensor_of(rule, (40, 30))
    before = tensor.all_values.copy()
    tensor.all_gradient[...] = 0
    for step in (1, 2):
        rule.update(tensor, StepArgs(step, 0.01))
    np.testing.assert_array_equal(tensor.all_values, before)
    assert all(np.isfinite(state).all() for state in tensor.states.values())
