"""The mean of the values over the steps: for any rule, laid out like the parameters, without the rule's knowledge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from featherback import optim
from featherback.engine.host.paged import PagedArray
from featherback.nn.slots import SlotTable
from featherback.optim.average import MEAN, Averaged, begin
from tests.optim.paged import as_rows

STEPS = 9
SLOTS = SlotTable(
    [{"a": (3, 5), "b": (600, 700)}, {"a": (3, 5)}]
)  # b is more than a tile; the second row is not filled


def _parameters() -> PagedArray:
    parameters = PagedArray(SLOTS.layers, SLOTS.size)
    rng = np.random.default_rng(0)
    for layer in range(SLOTS.layers):
        row = np.zeros(SLOTS.size, np.float32)
        used = sum(slot.size for slot in SLOTS.layer(layer))
        row[:used] = rng.standard_normal(used)
        parameters.write(layer, row)
    return parameters


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("name", optim.for_adapters())
def test_each_step_weighs_as_much_as_its_number(tmp_path: Path, name: str, in_files: bool) -> None:
    alone, averaged = _parameters(), _parameters()
    rule = optim.OPTIONS.make(name, {})
    plain = optim.LayerwiseOptimizer(rule, alone, SLOTS)
    ours = optim.LayerwiseOptimizer(Averaged(rule=rule), averaged, SLOTS, tmp_path if in_files else None)
    begin(ours.states[MEAN], averaged)
    first = as_rows(averaged)
    np.testing.assert_array_equal(as_rows(ours.kept), first)
    after = []
    for step in range(STEPS):
        gradients = PagedArray(SLOTS.layers, SLOTS.size)
        rng = np.random.default_rng(step)
        gradients.write(0, rng.standard_normal(SLOTS.size).astype(np.float32))  # none for the second layer
        for optimizer in (plain, ours):
            assert optimizer.step(gradients, 0.1)
        after.append(as_rows(averaged).astype(np.float64))
    np.testing.assert_array_equal(as_rows(averaged), as_rows(alone))  # the rule does what it does
    expected = np.average(after, 0, range(1, STEPS + 1))
    np.testing.assert_allclose(as_rows(ours.kept)[0], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(as_rows(ours.kept)[1], first[1])
    assert np.abs(expected[0] - after[-1][0]).max() > 0.01
    assert plain.kept is alone
    plain.close()
    ours.close()
