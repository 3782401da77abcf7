"""Kahneman-Tversky optimisation (Ethayarajh et al., 2024, arXiv 2402.01306): single answers, each wanted or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from featherback.core.options import option
from featherback.data.batch import CHOSEN, MISMATCHED, REJECTED, Targets
from featherback.nn.objectives.base import Measured, Measures, Numbers, PerTarget
from featherback.nn.objectives.preference import Preference, answers_of, log_probabilities, per_target, sigmoid, sums_of


@dataclass(frozen=True, kw_only=True)
class KTO(Preference):
    """Sum of weight * (1 - sigmoid(beta (score - z))) of wanted answers, and with the opposite sign of unwanted ones.

    z is the mean score of answers under the wrong prompt in the batch, at least 0. It estimates how far the model has
    moved, and is a constant for the gradient.
    """

    data_form: ClassVar[str] = "labels"
    needs_reference: ClassVar[bool] = True

    desirable_weight: float = option(1.0, least=0, help="Weight of the loss of wanted answers.")
    undesirable_weight: float = option(1.0, least=0, help="Weight of the loss of unwanted answers.")

    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        parts, scores = answers_of(targets).parts, self._scores(targets, logp)
        mismatched = parts == MISMATCHED
        moved = max(0.0, float(np.sum(scores * mismatched)) / max(1, int(np.count_nonzero(mismatched))))
        sign = np.select([parts == CHOSEN, parts == REJECTED], [1.0, -1.0])
        weights = np.select([parts == CHOSEN, parts == REJECTED], [self.desirable_weight, self.undesirable_weight])
        value = sigmoid(sign * self.beta * (scores - moved))
        slopes = -weights * sign * self.beta * value * (1 - value)
        return float(np.sum(weights * (1 - value))), PerTarget(*per_target(targets, slopes))

    def measures(self, targets: Targets, logp: PerTarget) -> Measures:
        answers, (sums, lengths) = answers_of(targets), sums_of(targets, logp)
        parts, rewards = answers.parts, self.beta * (sums - answers.reference)
        wanted, unwanted = rewards[parts == CHOSEN], rewards[parts == REJECTED]
        return {
            "chosen_reward": Measured(float(wanted.sum()), len(wanted)),
            "rejected_reward": Measured(float(unwanted.sum()), len(unwanted)),
            **log_probabilities(answers, sums, lengths),
        }

    def _scores(self, targets: Targets, logp: PerTarget) -> Numbers:
        return sums_of(targets, logp)[0] - answers_of(targets).reference


OBJECTIVE = KTO
