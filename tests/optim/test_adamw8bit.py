"""8-bit moments: the precision of their rounding, and their size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from featherback.engine.backend import levels
from featherback.engine.backend.levels import BLOCK, Code
from featherback.optim import RULES
from featherback.optim.rules import adamw8bit
from featherback.optim.rules.adamw8bit import AdamW8bit

CODES = (adamw8bit.FIRST, adamw8bit.SECOND)
SIZE = 1000  # the last block is not full


def _held(rule: AdamW8bit, size: int = SIZE) -> list[np.ndarray]:
    return [np.zeros(count, np.float32) for count in rule.state_sizes((size,)).values()]


def _pack(states: list[np.ndarray], held: list[np.ndarray], key: tuple[int, ...]) -> None:
    for number, (state, row, code) in enumerate(zip(states, held, CODES, strict=True)):
        levels.pack(state, code, (*key, number), row)


def _unpack(held: list[np.ndarray]) -> list[np.ndarray]:
    out = [np.empty(SIZE, np.float32) for _ in held]
    for row, code, state in zip(held, CODES, out, strict=True):
        levels.unpack(row, code, state)
    return out


def _states(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    first = (rng.standard_normal(SIZE) * 10.0 ** rng.uniform(-3, 0, SIZE)).astype(np.float32)
    return [first, np.square(first) * rng.uniform(0.5, 2, SIZE).astype(np.float32)]


def test_a_quarter_of_the_memory() -> None:
    small, large = (sum(RULES[name]().state_sizes((1000, 1000)).values()) for name in ("adamw8bit", "adamw"))
    assert small < 0.26 * large


def test_the_mean_of_many_roundings_is_what_was_rounded() -> None:
    states, sums, held = _states(0), np.zeros((2, SIZE)), _held(AdamW8bit())
    rounds = 400
    for step in range(rounds):
        _pack(states, held, (step,))
        sums += _unpack(held)
    for state, total, code in zip(states, sums, CODES, strict=True):
        blocks = np.pad(state, (0, -SIZE % BLOCK)).reshape(-1, BLOCK)
        scale = np.repeat(np.abs(blocks).max(axis=1), BLOCK)[:SIZE]
        level = np.floor((np.abs(state) / scale) ** (1 / 2**code.roots) * code.most)
        step_size = (((level + 1) / code.most) ** 2**code.roots - (level / code.most) ** 2**code.roots) * scale
        above = level >= code.least  # below, what is not zero is raised
        error = np.abs(total / rounds - state)
        assert (error <= 5 * 0.5 * step_size / rounds**0.5 + 1e-6 * scale)[above].all()


def test_a_second_moment_decays_as_it_should() -> None:
    """A change of a thousandth per step, far less than two levels differ by, would be lost by rounding to nearest."""
    held = _held(AdamW8bit())
    states = [np.zeros(SIZE, np.float32), _states(1)[1]]
    before, largest = states[1].copy(), np.arange(SIZE) % BLOCK == 0
    before[largest] = states[1][largest] = 10.0  # blocks with one scale
    for step in range(700):
        states[1] *= np.float32(0.999)
        states[1][largest] = 10.0
        _pack(states, held, (step,))
        states = _unpack(held)
    seen = ~largest & (before > 1e-3)
    assert abs(np.mean(states[1][seen] / before[seen]) - 0.999**700) < 0.05


def test_nothing_vanishes_that_divides() -> None:
    held = _held(AdamW8bit())
    second = np.full(SIZE, 1e-20, np.float32)
    second[::BLOCK] = 1.0
    _pack([np.zeros(SIZE, np.float32), second], held, (1,))
    assert (_unpack(held)[1] > 0).all()


def test_zeros_stay_zeros_and_signs_stay() -> None:
    held, states = _held(AdamW8bit()), _states(2)
    assert not np.any(_unpack(held))
    _pack([np.zeros(SIZE, np.float32)] * 2, held, (1,))
    assert not np.any(_unpack(held)[0])
    _pack(states, held, (1,))
    first = _unpack(held)[0]
    assert (first * states[0] >= 0).all()


def nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: round to nearest."""
    drawn: Any = levels.numbers
    monkeypatch.setattr(levels, "numbers", lambda *given: np.full_like(drawn(*given), 2**15))


def in_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: unbiased in the levels' numbers, not in their values."""

    def between(self: Code, magnitudes: np.ndarray, chance: np.ndarray) -> np.ndarray:
        root = magnitudes ** (1 / 2**self.roots) * self.most
        return np.clip(np.floor(root + chance), self.least, self.most)

    monkeypatch.setattr(Code, "nearest", between)


@pytest.mark.parametrize(
    ("plant", "found_by"),
    [
        (nearest, test_a_second_moment_decays_as_it_should),
        (in_levels, test_the_mean_of_many_roundings_is_what_was_rounded),
    ],
)
def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch, plant: Any, found_by: Any) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        found_by()
