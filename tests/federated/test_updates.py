"""The server rejects what is no update of this adapter, and names the reason."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from featherback.federated import updates
from featherback.federated.strategies.base import Arrays
from featherback.federated.updates import Referee, Update, examine

SHAPES = {"a": (2, 3), "b": (4,)}
GOOD = {"tokens": 100, "loss": 1.5}


def _arrays(scale: float = 1.0) -> Arrays:
    return {name: np.full(shape, scale, np.float32) for name, shape in SHAPES.items()}


def _update(node: int = 1, scale: float = 1.0, **measures: Any) -> Update:
    return examine(node, _arrays(scale), {**GOOD, **measures}, SHAPES, None)


def _wrong(name: str, array: Any) -> Update:
    return examine(1, {**_arrays(), name: array}, GOOD, SHAPES, None)


def _referee(largest_weight: float | None = 4.0) -> Referee:
    return Referee(20.0, largest_weight)


def test_the_norm_is_that_of_the_change() -> None:
    before = _arrays(0.5)
    assert examine(1, _arrays(2.0), GOOD, SHAPES, before).norm == pytest.approx(1.5 * 10**0.5)
    assert _update(scale=2.0).norm == pytest.approx(2.0 * 10**0.5)


def test_good_updates_pass() -> None:
    referee = _referee()
    verdict = referee.judge([_update(1), _update(2, 3.0), _update(3, 0.2)], floor=0.0)
    assert verdict == ({}, {1: 100, 2: 100, 3: 100})
    assert len(referee.norms) == 3


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (_wrong("a", np.full((2, 3), np.nan, np.float32)), "a holds NaN or infinity"),
        (_wrong("b", np.full(4, -np.inf, np.float32)), "b holds NaN or infinity"),
        (_wrong("b", np.zeros((4, 1), np.float32)), r"b has the shape \(4, 1\), not \(4,\)"),
        (_wrong("b", np.zeros(4, np.float64)), "b has the type float64, not float32"),
        (_wrong("c", np.zeros(4, np.float32)), "c is unknown"),
        (examine(1, {"a": np.zeros((2, 3), np.float32)}, GOOD, SHAPES, None), "b is missing"),
        (_update(tokens=0), "its weight is 0 supervised tokens"),
        (_update(tokens=-5), "its weight is -5"),
        (_update(tokens=math.nan), "its weight is nan"),
        (_update(tokens=1e15), "its weight is 1000"),
        (_update(loss=math.inf), "its loss is inf"),
        (_update(loss=math.nan), "its loss is nan"),
        (_update(loss=1e29), r"its loss is 1e\+29; expected -100 to 100"),
        (_update(loss=-1e29), r"its loss is -1e\+29"),
        (_update(tokens=1 << 41), "its weight is 2199023255552 supervised tokens"),
        (_update(tokens=0.0), "its weight is 0.0"),
        (examine(1, _arrays(), {**GOOD, "tokens": 641}, SHAPES, None, 640), "its weight is 641 .*expected 1 to 640"),
        (examine(1, _arrays(), {"loss": 1.0}, SHAPES, None), "its weight is nan"),
    ],
)
def test_a_broken_update_is_rejected(update: Update, reason: str) -> None:
    found = _referee().judge([update, _update(2)], floor=0.0).reasons
    assert found.keys() == {1}
    assert re.match(reason, found[1])


def test_an_absurd_norm_is_rejected() -> None:
    referee = _referee()
    found = referee.judge([_update(1), _update(2, 1e6), _update(3)], floor=0.0).reasons
    assert found.keys() == {2}
    assert "norm" in found[2]
    assert max(referee.norms) < 10  # what is rejected is not remembered


def test_two_nodes_are_judged_by_the_smaller_norm_and_by_earlier_rounds() -> None:
    referee = _referee()
    assert referee.judge([_update(1), _update(2, 1e6)], floor=0.0).reasons.keys() == {2}
    assert referee.judge([_update(2, 1e6)], floor=0.0).reasons.keys() == {2}
    assert referee.judge([_update(2, 1.1)], floor=0.0).reasons == {}


def test_a_node_that_sends_next_to_nothing_does_not_have_the_others_rejected() -> None:
    assert _referee().judge([_update(1, 1e-9), _update(2)], floor=10.0).reasons == {}
    assert _referee().judge([_update(1, 1e-9), _update(2)], floor=0.0).reasons.keys() == {2}


@pytest.mark.parametrize("claimed", [101, 400, 401, 10_000, 1 << 39, 1 << 40, 2.0**39.5])
def test_a_weight_counts_at_most_four_times_as_much_as_usual(claimed: float) -> None:
    verdict = _referee().judge([_update(1), _update(2, tokens=claimed), _update(3), _update(4, tokens=90)], floor=0.0)
    assert verdict.reasons == {}
    assert verdict.weights == {1: 100, 2: min(claimed, 400), 3: 100, 4: 90}


def test_a_fault_in_the_limit_of_weights_is_found() -> None:
    """The planted fault: no limit, as for gradients."""
    verdict = _referee(None).judge([_update(1), _update(2, tokens=1 << 40)], floor=0.0)
    assert verdict.weights[2] == 1 << 40


def test_a_large_update_has_no_extra_weight() -> None:
    """Weight times norm moves the mean: 20 times the usual norm is allowed, or 4 times the usual weight, not both."""
    for scale, weight in ((19.9, 100.5), (10.0, 200.0), (5.0, 400.0), (1.0, 400.0)):
        verdict = _referee().judge([_update(1), _update(2, scale, tokens=10_000), _update(3)], floor=0.0)
        assert verdict.weights[2] == pytest.approx(weight, rel=1e-3)
        assert verdict.weights[2] * scale <= 20 * 100 * (1 + 1e-6)


def test_small_weights_do_not_silence_the_others() -> None:
    """A minority that claims one token each changes nothing for the others."""
    few = [_update(1, tokens=1), _update(2, tokens=1), _update(3), _update(4), _update(5, tokens=300)]
    assert _referee().judge(few, floor=0.0).weights == {1: 1, 2: 1, 3: 100, 4: 100, 5: 300}


def test_a_mean_of_weights_that_are_alike_is_what_it_was() -> None:
    alike = {1: 80.0, 2: 100.0, 3: 120.0, 4: 300.0}
    assert updates.limited(alike, 4.0) == alike


@pytest.mark.parametrize(("tokens", "loss"), [(0, 1), (-1, 1), (math.nan, 1), (1e12 * 2, 1), (9, -0.1), (9, 1e30)])
def test_an_impossible_held_out_loss_is_noticed(tokens: float, loss: float) -> None:
    assert updates.problem_of(tokens, loss, updates.MOST_TOKENS, least=0.0)
    assert updates.problem_of(9, math.nan, updates.MOST_TOKENS, least=0.0)
    assert not updates.problem_of(9, 2.5, updates.MOST_TOKENS, least=0.0)
    assert not updates.problem_of(9, 0.0, updates.MOST_TOKENS, least=0.0)


def test_a_fault_in_the_check_of_nan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates.np, "isfinite", lambda array: np.ones(np.shape(array), bool))
    found = _referee().judge([_wrong("a", np.full((2, 3), np.nan, np.float32)), _update(2)], floor=0.0).reasons
    assert "NaN" not in found.get(1, "")


def test_lower_median() -> None:
    assert updates.lower_median([3.0, 1.0, 2.0]) == 2.0
    assert updates.lower_median([1.0, 9.0]) == 1.0
    assert updates.lower_median([]) == math.inf
