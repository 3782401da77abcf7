"""Judges answers by a weighted sum of rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.errors import FeatherbackError
from featherback.runs.rewards import REWARDS
from featherback.runs.rewards.base import Answer, Limits, Reward
from featherback.runs.rewards.written import PYTHON, read

Function = Callable[[str, Mapping[str, Any]], float]
"""A reward in Python: (answer, record) -> number."""


class Judge:
    """The rewards of a run. `functions`: those from Python, by name."""

    def __init__(self, written: Sequence[str], limits: Limits, functions: Mapping[str, Function] | None = None) -> None:
        self._rewards: list[tuple[float, str, Reward]] = []
        self.labels: list[str] = []
        """Each reward as it was written, without its weight."""
        for text in written:
            weight, kind, argument = read(text)
            reward = REWARDS[kind](argument, limits)
            if kind == PYTHON:
                reward.use(functions or {})  # type: ignore[attr-defined]
            self._rewards.append((weight, kind, reward))
            self.labels.append(argument if kind == PYTHON else f"{kind}:{argument}".removesuffix(":"))

    def __call__(self, answers: Sequence[Answer]) -> tuple[NDArray[np.float64], dict[str, float]]:
        """Return the reward of each answer (n,), and the mean of each kind if there are several."""
        return self.summed(self.scores(answers))

    def scores(self, answers: Sequence[Answer]) -> NDArray[np.float64]:
        """Return what each reward gives each answer (rewards, n), without weights."""
        scores = np.zeros((len(self._rewards), len(answers)))
        for found, (_, kind, reward) in zip(scores, self._rewards):
            found[:] = reward.judge_all(answers)
            if not np.isfinite(found).all():
                where = int(np.flatnonzero(~np.isfinite(found))[0])
                raise FeatherbackError(
                    f"The reward {kind} is {found[where]} for an answer; it must be a finite number."
                )
        return scores

    def summed(self, scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], dict[str, float]]:
        """Return the weighted sum of scores (rewards, n) for each answer (n,), and the means as `__call__` does."""
        total, parts = np.zeros(scores.shape[1]), dict[str, float]()
        for found, (weight, kind, _) in zip(scores, self._rewards):
            total += weight * found
            if len(self._rewards) > 1:
                parts[f"reward_{kind}"] = float(found.mean()) if len(found) else math.nan
        return total, parts
