"""The loss of language models: - log p of each supervised token, times its weight if it has one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from featherback.data.batch import Targets
from featherback.nn.objectives.base import Objective, PerTarget


@dataclass(frozen=True, kw_only=True)
class NextToken(Objective):
    """- sum over targets of weight * log p.

    The derivatives are constant, so the head scales rows as it computes them.
    """

    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        first, further = targets.weights, targets.further_weights
        loss = -float(np.sum(logp.first if first is None else first * logp.first)) - float(further @ logp.further)
        return loss, PerTarget(-1.0 if first is None else -first, -further)


NEXT_TOKEN = NextToken()
OBJECTIVE = NextToken
