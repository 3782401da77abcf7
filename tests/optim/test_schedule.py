"""Learning-rate schedules, against the formulas and against torch's cosine."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from featherback.errors import FeatherbackError
from featherback.optim.schedule import SCHEDULES, Schedule


@pytest.mark.parametrize("kind", SCHEDULES)
def test_warm_up_rises_to_the_peak_and_nothing_exceeds_it(kind: str) -> None:
    rates = [Schedule(kind, 0.5, 20, warmup=5)(step) for step in range(1, 21)]
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert rates[5] == 0.5
    assert max(rates) == 0.5
    assert min(rates) > 0
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))


def test_constant_stays() -> None:
    assert {Schedule("constant", 0.5, 7)(step) for step in range(1, 8)} == {0.5}


def test_linear_falls_by_equal_parts() -> None:
    assert [Schedule("linear", 1.0, 4)(step) for step in range(1, 5)] == pytest.approx([1, 0.75, 0.5, 0.25])


def test_cosine_is_torchs() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
    for step in range(1, 10):
        assert Schedule("cosine", 0.3, 9)(step) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        theirs.step()


def test_a_warm_up_longer_than_the_run_only_rises() -> None:
    assert [Schedule("cosine", 1.0, 2, warmup=4)(step) for step in (1, 2)] == [0.25, 0.5]
    assert math.isfinite(Schedule("cosine", 1.0, 4, warmup=4)(4))


def test_unknown_schedule() -> None:
    with pytest.raises(FeatherbackError, match=r"'step'.*cosine"):
        Schedule("step", 1.0, 10)
