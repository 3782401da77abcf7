"""Intervals against SciPy, and ROUGE-L against the package rouge-score: `make test-authors`."""

from __future__ import annotations

import random

import numpy as np
import pytest

from featherback.runs import intervals
from featherback.runs.rewards.rouge_l import rouge_l
from tests.runs.test_intervals import SCIPY

stats = pytest.importorskip("scipy.stats")
scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"], use_stemmer=False)
WORDS = ["the", "cat", "sat", "on", "mat", "a", "dog", "it's", "U.S.", "3.14", "x_y", "Paris,", "paris!"]


def test_shares_and_the_sign_test() -> None:
    for (wins, losses), written in SCIPY.items():
        test = stats.binomtest(wins, wins + losses)
        wanted = (*test.proportion_ci(0.95, "exact"), test.pvalue)
        np.testing.assert_allclose(written, wanted, rtol=1e-12)
        found = (*intervals.share(wins, losses), intervals.sign_test(wins, losses))
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_the_bootstrap() -> None:
    values = np.random.default_rng(5).normal(0.2, 1, 50)
    wanted = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=100_000).confidence_interval
    np.testing.assert_allclose(intervals.bootstrap(values), wanted, atol=0.02)


def test_rouge_l() -> None:
    for seed in range(1000):
        chosen = random.Random(seed)
        text, right = (" ".join(chosen.choices(WORDS, k=chosen.randint(0, 12))) for _ in range(2))
        assert abs(scorer.score(right, text)["rougeL"].fmeasure - rouge_l(text, right)) < 1e-12, (text, right)
