"""The proximal term of FedProx: any rule steps as if the gradient had the pull towards the start in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from featherback import optim
from featherback.engine.host.paged import PagedArray
from featherback.nn.slots import SlotTable
from featherback.optim.average import begin
from featherback.optim.proximal import START, Proximal
from tests.optim.paged import as_rows

SLOTS = SlotTable([{"a": (3, 5), "b": (600, 700)}])  # b is more than a tile
MU, SCALE = 0.3, 0.25
STEPS = 4


def _array(values: np.ndarray) -> PagedArray:
    found = PagedArray(SLOTS.layers, SLOTS.size)
    found.write(0, values)
    return found


def _random(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SLOTS.size, np.float32)


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("name", optim.for_adapters())
def test_the_rule_sees_the_pull(tmp_path: Path, name: str, in_files: bool) -> None:
    rule, first = optim.OPTIONS.make(name, {}), _random(0)
    ours, plain = _array(first), _array(first)
    pulled = optim.LayerwiseOptimizer(Proximal(rule=rule, mu=MU), ours, SLOTS, tmp_path if in_files else None)
    begin(pulled.states[START], ours)
    reference = optim.LayerwiseOptimizer(rule, plain, SLOTS)
    for step in range(1, STEPS + 1):
        gradient = _random(step)
        pull = np.float32(MU / SCALE) * (as_rows(plain)[0] - first)  # the rule multiplies by the scale
        assert pulled.step(_array(gradient), 0.1, SCALE)
        assert reference.step(_array(gradient + pull), 0.1, SCALE)
    np.testing.assert_allclose(as_rows(ours), as_rows(plain), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(as_rows(pulled.states[START])[0], first)
    pulled.close()


@pytest.mark.parametrize("wrong", [-MU, 2 * MU, 0.0], ids=["sign", "twice", "none"])
def test_a_planted_fault_is_found(wrong: float) -> None:
    first, gradient = _random(0), _random(1)
    found = []
    for mu in (MU, wrong):
        values = _array(first)
        optimizer = optim.LayerwiseOptimizer(Proximal(rule=optim.OPTIONS.make("sgd", {}), mu=mu), values, SLOTS)
        begin(optimizer.states[START], values)
        for _ in range(2):
            optimizer.step(_array(gradient), 0.1)
        found.append(as_rows(values))
    assert not np.allclose(*found, rtol=1e-4, atol=1e-5)
