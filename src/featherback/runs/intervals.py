"""Intervals of 95 % for differences between two models that answered the same prompts, and a test of who is better."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
RESAMPLES = 10_000


def bootstrap(differences: NDArray[np.float64], resamples: int = RESAMPLES) -> tuple[float, float]:
    """Return the interval of the mean of differences (n,) by the paired bootstrap: percentiles of resampled means.

    Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3; for pairs of systems Koehn (2004).
    The random numbers are always the same.
    """
    random, size = np.random.default_rng(0), differences.size
    means = np.array([differences[random.integers(size, size=size)].mean() for _ in range(resamples)])
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def share(wins: int, losses: int) -> tuple[float, float]:
    """Return the interval of the share of wins by Clopper and Pearson (1934), from 0 to 1 without any game.

    It excludes one half if, and only if, `sign_test` is below 5 %.
    """
    games, tail = wins + losses, (1 - LEVEL) / 2
    low = _solve(lambda p: _at_least(wins, games, p) - tail) if wins else 0.0
    high = _solve(lambda p: tail - _at_least(losses, games, 1 - p)) if losses else 1.0
    return low, high


def sign_test(wins: int, losses: int) -> float:
    """Return the p-value of the two-sided exact sign test, in which ties do not count (Dixon and Mood 1946)."""
    return min(1.0, 2 * _at_least(max(wins, losses), wins + losses, 0.5))


def _at_least(count: int, games: int, p: float) -> float:
    """Return the probability of at least `count` successes in `games`, each with probability p."""
    if p <= 0 or p >= 1:
        return float(p >= 1 or count == 0)
    ways = (math.lgamma(games + 1) - math.lgamma(k + 1) - math.lgamma(games - k + 1) for k in range(count, games + 1))
    return math.fsum(
        math.exp(way + k * math.log(p) + (games - k) * math.log1p(-p)) for k, way in zip(range(count, games + 1), ways)
    )


def _solve(rising: Callable[[float], float]) -> float:
    """Return where a function that rises from 0 to 1 is zero."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
