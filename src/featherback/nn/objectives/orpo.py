"""Odds ratio preference optimisation (Hong et al., 2024, arXiv 2403.07691): no reference, and a next-token loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from featherback.nn.objectives.base import Numbers
from featherback.nn.objectives.preference import Pairwise, log_sigmoid, sigmoid

CERTAIN = -1e-9
"""Largest mean log-probability: the odds of a certain answer are infinite."""


@dataclass(frozen=True, kw_only=True)
class ORPO(Pairwise):
    """- beta log sigmoid(d) + the next-token loss of prompt and chosen answer.

    d = log (odds of chosen / odds of rejected) and odds = p / (1 - p), with log p the mean log-probability per token.
    """

    per_token: ClassVar[bool] = True
    over_prompt: ClassVar[bool] = True
    rate: ClassVar[float] = 1.0  # its next-token loss has a minimum at good text

    @property
    def likelihood_weight(self) -> float:
        return 1.0

    def compare(self, chosen: Numbers, rejected: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        both = np.minimum(np.stack([chosen, rejected]), CERTAIN)
        unlikely = -np.expm1(both)  # 1 - p
        odds = both - np.log(unlikely)
        d = odds[0] - odds[1]
        slope = -self.beta * sigmoid(-d)
        return -self.beta * log_sigmoid(d), slope / unlikely[0], -slope / unlikely[1]


OBJECTIVE = ORPO
