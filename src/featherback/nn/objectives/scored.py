"""Objectives that read the scores of a trained head instead of log-probabilities of tokens (`nn/score.py`)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from featherback.data.batch import Targets
from featherback.nn.objectives.base import Numbers, Objective, PerTarget


@dataclass(frozen=True, kw_only=True)
class Scored(Objective):
    """A loss of the scores of whole sequences."""

    whole_batch: ClassVar[bool] = True

    @abstractmethod
    def of_scores(self, targets: Targets, scores: Numbers) -> tuple[float, Numbers]:
        """Return the summed loss, and its derivative by each score (n, K)."""

    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        loss, slopes = self.of_scores(targets, scores_in(logp))
        return loss, PerTarget(slopes, np.empty(0))


@dataclass(frozen=True, kw_only=True)
class KeptScores(Scored):
    """Keeps the scores. Its loss is 0."""

    scores: ClassVar[str] = "label"
    found: list[Numbers] = field(default_factory=list)  # of each batch (n, K)

    def of_scores(self, targets: Targets, scores: Numbers) -> tuple[float, Numbers]:
        order = np.argsort(targets.sequences)
        self.found.append(scores[order])
        return 0.0, np.zeros_like(scores)


def scores_in(logp: PerTarget) -> Numbers:
    """Return the scores (n, K) that a trained head passes to an objective."""
    assert isinstance(logp.first, np.ndarray)
    return logp.first
