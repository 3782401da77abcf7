"""Sampling."""

from __future__ import annotations

import numpy as np
import pytest

from featherback.errors import FeatherbackError
from featherback.infer.sampler import Sampler

LOGITS = np.log(np.array([0.1, 0.5, 0.05, 0.35], np.float32))


def _shares(sampler: Sampler, draws: int = 4000) -> list[float]:
    tokens = [sampler(LOGITS) for _ in range(draws)]
    return [tokens.count(i) / draws for i in range(4)]


def test_greedy_takes_the_likeliest() -> None:
    assert Sampler()(LOGITS) == 1


def test_draws_follow_the_probabilities() -> None:
    assert _shares(Sampler(1.0)) == pytest.approx([0.1, 0.5, 0.05, 0.35], abs=0.03)


def test_temperature_sharpens() -> None:
    sharp = np.array([0.1, 0.5, 0.05, 0.35]) ** 2
    assert _shares(Sampler(0.5)) == pytest.approx(list(sharp / sharp.sum()), abs=0.03)


def test_top_k_and_top_p_leave_the_likeliest() -> None:
    assert _shares(Sampler(1.0, top_k=2)) == pytest.approx([0, 0.5 / 0.85, 0, 0.35 / 0.85], abs=0.03)
    assert _shares(Sampler(1.0, top_p=0.6)) == pytest.approx([0, 0.5 / 0.85, 0, 0.35 / 0.85], abs=0.03)
    assert _shares(Sampler(1.0, top_p=0.4))[1] == 1
    assert min(_shares(Sampler(1.0, top_p=1.0))) > 0


def test_min_p_leaves_what_is_likely_beside_the_likeliest() -> None:
    """The probabilities are 0.1, 0.5, 0.05 and 0.35; at temperature 0.5 their squares count."""
    assert _shares(Sampler(1.0, min_p=0.6)) == pytest.approx([0, 0.5 / 0.85, 0, 0.35 / 0.85], abs=0.03)
    assert _shares(Sampler(0.5, min_p=0.6))[1] == 1
    assert _shares(Sampler(1.0, min_p=1.0))[1] == 1
    assert _shares(Sampler(1.0, min_p=0.15)) == pytest.approx([0.1 / 0.95, 0.5 / 0.95, 0, 0.35 / 0.95], abs=0.03)
    assert _shares(Sampler(1.0, top_k=2, min_p=0.15)) == pytest.approx([0, 0.5 / 0.85, 0, 0.35 / 0.85], abs=0.03)


def test_seeds() -> None:
    first, again, other = (Sampler(1.0, seed=seed) for seed in (3, 3, 4))
    draws = [[sampler(LOGITS) for _ in range(50)] for sampler in (first, again, other)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(
    "bad", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}, {"min_p": -0.1}, {"min_p": 1.1}]
)
def test_bad_settings(bad: dict[str, float]) -> None:
    with pytest.raises(FeatherbackError, match=r"--(temperature|top-p|top-k|min-p)"):
        Sampler(**bad)  # type: ignore[arg-type]
