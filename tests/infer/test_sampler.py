"""Sampling."""

from __future__ import annotations

import numpy as np
import pytest

from featherback.errors import FeatherbackError
from featherback.infer.sampler import Biased, Biases, Sampler

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


def test_tokens_are_sorted_as_far_as_needed() -> None:
    """The draws are those from a distribution that is sorted whole, also if many tokens are equal."""
    rng = np.random.default_rng(0)
    flat, steep = rng.normal(size=5000).astype(np.float32), (4 * rng.normal(size=5000)).astype(np.float32)
    for logits in (flat, steep, np.round(steep)):
        for settings in ({}, {"top_p": 0.9}, {"top_k": 700}, {"top_k": 20, "top_p": 0.8}, {"min_p": 0.01}):
            sampler, draws = Sampler(1.3, seed=5, **settings), np.random.default_rng(5)
            order = np.argsort(-logits, kind="stable")[: settings.get("top_k") or None]
            chances = np.exp((logits[order] - logits.max()) / np.float64(1.3))
            chances /= chances.sum()
            kept = int(np.searchsorted(np.cumsum(chances), settings.get("top_p", 1.0))) + 1
            chances = chances[:kept][chances[:kept] >= settings.get("min_p", 0) * chances[0]]
            for _ in range(20):
                assert sampler(logits) == order[draws.choice(chances.size, p=chances / chances.sum())]


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


def test_biases_change_what_is_likely() -> None:
    """Against the formula of OpenAI's API, written out for each step."""
    logits = np.array([1.0, 0.91, 0.52, 0.0, -5.0], np.float32)
    biases = Biases(frequency=0.23, presence=0.31, tokens={4: 5.55, 3: -100.0})
    sample, found = Biased(Sampler(), biases), list[int]()
    for _ in range(12):
        expected = [
            float(logits[token]) + biases.tokens.get(token, 0) - 0.23 * found.count(token) - 0.31 * (token in found)
            for token in range(5)
        ]
        before = logits.copy()
        found.append(sample(logits))
        np.testing.assert_array_equal(logits, before)
        assert found[-1] == int(np.argmax(np.float32(expected)))
    assert 3 not in found
    assert len(set(found)) == 4


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_is_penalised_as_in_transformers(penalty: float, window: int | None) -> None:
    import torch
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = np.random.default_rng(0).normal(size=50).astype(np.float32)
    prompt, found = [3, 7, 7, 20], list[int]()
    sample = Biased(Sampler(), Biases(repetition=penalty, window=window), prompt)
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    for _ in range(12):
        seen = [*prompt, *found]
        seen = seen if window is None else seen[-window:]
        found.append(sample(logits))
        expected = processor(torch.tensor([seen]), torch.from_numpy(logits)[None].clone())
        assert found[-1] == int(expected.argmax())
    assert len(set(found)) > 1 or penalty < 1
