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


def _referee() -> Referee:
    return Referee(largest=20.0)


def test_the_norm_is_that_of_the_change() -> None:
    before = _arrays(0.5)
    assert examine(1, _arrays(2.0), GOOD, SHAPES, before).norm == pytest.approx(1.5 * 10**0.5)
    assert _update(scale=2.0).norm == pytest.approx(2.0 * 10**0.5)


def test_good_updates_pass() -> None:
    referee = _referee()
    assert referee.judge([_update(1), _update(2, 3.0), _update(3, 0.2)], floor=0.0) == {}
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
        (examine(1, _arrays(), {"loss": 1.0}, SHAPES, None), "its weight is nan"),
    ],
)
def test_a_broken_update_is_rejected(update: Update, reason: str) -> None:
    found = _referee().judge([update, _update(2)], floor=0.0)
    assert found.keys() == {1}
    assert re.match(reason, found[1])


def test_an_absurd_norm_is_rejected() -> None:
    referee = _referee()
    found = referee.judge([_update(1), _update(2, 1e6), _update(3)], floor=0.0)
    assert found.keys() == {2}
    assert "norm" in found[2]
    assert max(referee.norms) < 10  # what is rejected is not remembered


def test_two_nodes_are_judged_by_the_smaller_norm_and_by_earlier_rounds() -> None:
    referee = _referee()
    assert referee.judge([_update(1), _update(2, 1e6)], floor=0.0).keys() == {2}
    assert referee.judge([_update(2, 1e6)], floor=0.0).keys() == {2}
    assert referee.judge([_update(2, 1.1)], floor=0.0) == {}


def test_a_node_that_sends_next_to_nothing_does_not_have_the_others_rejected() -> None:
    assert _referee().judge([_update(1, 1e-9), _update(2)], floor=10.0) == {}
    assert _referee().judge([_update(1, 1e-9), _update(2)], floor=0.0).keys() == {2}


def test_a_fault_in_the_check_of_nan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates.np, "isfinite", lambda array: np.ones(np.shape(array), bool))
    found = _referee().judge([_wrong("a", np.full((2, 3), np.nan, np.float32)), _update(2)], floor=0.0)
    assert "NaN" not in found.get(1, "")


def test_lower_median() -> None:
    assert updates.lower_median([3.0, 1.0, 2.0]) == 2.0
    assert updates.lower_median([1.0, 9.0]) == 1.0
    assert updates.lower_median([]) == math.inf
