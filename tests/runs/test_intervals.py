"""Intervals and the sign test give what SciPy gives. `tests/clients/metrics.py` computes the values again."""

from __future__ import annotations

import numpy as np
import pytest

from featherback.runs import intervals

SCIPY = {
    (5, 0): (0.47817624989501856, 1.0, 0.0625),
    (0, 7): (0.0, 0.4096163972250047, 0.015625),
    (41, 3): (0.8134379899279777, 0.985712331573034, 1.6183321349672042e-09),
    (8, 2): (0.4439045376923585, 0.9747892736731665, 0.109375),
    (60, 40): (0.4972091504223335, 0.6967052312971551, 0.05688793364098089),
    (1, 1): (0.01257911709367899, 0.987420882906321, 1.0),
    (500, 400): (0.5223989284249582, 0.5883474095096418, 0.0009564441369189373),
}
"""Wins and losses -> the exact interval of `scipy.stats.binomtest`, and its p-value. SciPy 1.17.1."""


@pytest.mark.parametrize(("wins", "losses"), SCIPY)
def test_wins_have_scipys_interval_and_p_value(wins: int, losses: int) -> None:
    found = (*intervals.share(wins, losses), intervals.sign_test(wins, losses))
    np.testing.assert_allclose(found, SCIPY[wins, losses], rtol=1e-9)


def test_without_a_decided_game_everything_is_possible() -> None:
    assert intervals.share(0, 0) == (0.0, 1.0)
    assert intervals.sign_test(0, 0) == 1.0


def test_the_interval_excludes_a_half_if_the_test_is_significant() -> None:
    for wins in range(40):
        low, high = intervals.share(wins, 39 - wins)
        assert (low > 0.5 or high < 0.5) == (intervals.sign_test(wins, 39 - wins) < 0.05)


def test_the_bootstrap_is_close_to_the_interval_of_a_normal_mean() -> None:
    values = np.random.default_rng(5).normal(0.2, 1, 400)
    error = 1.959964 * values.std() / 20
    found = intervals.bootstrap(values)
    np.testing.assert_allclose(found, (values.mean() - error, values.mean() + error), atol=0.1 * error)
    assert found == intervals.bootstrap(values)  # always the same


def test_equal_answers_differ_by_nothing() -> None:
    assert intervals.bootstrap(np.zeros(9)) == (0.0, 0.0)
