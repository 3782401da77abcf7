"""Rejection sampling fine-tuning (Yuan et al., 2023, arXiv 2308.01825): the next-token loss of the best answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from featherback.data.batch import Targets
from featherback.nn.objectives.base import Measures, Numbers, PerTarget
from featherback.nn.objectives.sampled import Sampled, rollouts_of


@dataclass(frozen=True, kw_only=True)
class RFT(Sampled):
    """- mean over tokens of log p, over the best answer to each prompt if it is better than the mean of all answers.

    Of equally good answers, the first is the best.
    """

    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        found = rollouts_of(targets)
        weights = (found.shares * found.advantages)[targets.sequences]
        return -float(np.sum(weights * logp.first)), PerTarget(-weights, np.empty(0))

    def judge(self, rewards: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers]:
        best = np.zeros(rewards.shape)
        rows, places = np.arange(len(rewards)), rewards.argmax(axis=1)
        best[rows, places] = rewards[rows, places] > rewards.mean(axis=1)
        return best, np.full(rewards.shape, rewards.size / max(1.0, float((best * lengths).sum())))

    def measures(self, targets: Targets, logp: PerTarget) -> Measures:
        return {}


OBJECTIVE = RFT
