"""Dr. GRPO (Liu et al., 2025, arXiv 2503.20783): GRPO without the two divisions that favour some answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from featherback.nn.objectives.base import Numbers
from featherback.nn.objectives.grpo import GRPO


@dataclass(frozen=True, kw_only=True)
class DrGRPO(GRPO):
    """Advantages are not divided by a deviation, and the sum over tokens is divided by the most that an answer has."""

    def advantages(self, rewards: Numbers) -> Numbers:
        found: Numbers = rewards - rewards.mean(axis=1, keepdims=True)
        return found

    def weights(self, lengths: Numbers) -> Numbers:
        return np.full(lengths.shape, 1 / self.answer_tokens)


OBJECTIVE = DrGRPO
