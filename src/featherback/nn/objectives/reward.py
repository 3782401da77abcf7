"""A reward model (Ouyang et al., 2022, arXiv 2203.02155), trained as by TRL's RewardTrainer: one score per answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from featherback.core.options import option
from featherback.data.batch import CHOSEN, REJECTED, Answers, Batch, Targets
from featherback.nn.objectives.base import Measured, Measures, Numbers, PerTarget
from featherback.nn.objectives.preference import answers_of, log_sigmoid, sigmoid, with_margin
from featherback.nn.objectives.scored import Scored, scores_in

Places = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Reward(Scored):
    """- log sigmoid(r_chosen - r_rejected - m), plus c (r_chosen + r_rejected)^2, summed over pairs."""

    scores: ClassVar[str] = "reward"
    data_form: ClassVar[str] = "pairs"
    most_answers: ClassVar[int] = 2
    measured: ClassVar[bool] = True

    center_rewards: float = option(
        0.0, least=0, help="Weight of the squared sum of both rewards, which keeps rewards near 0. TRL suggests 0.01."
    )
    margin: float = option(
        0.0, least=0, help="Difference that the reward of the better answer should exceed that of the worse one by."
    )

    def outputs(self, labels: Sequence[str] | None) -> tuple[str, ...]:
        return ("reward",)

    def fullest(self, batch: Batch) -> Batch:
        pairs = -(-batch.n_sequences // 2)
        examples = np.repeat(np.arange(pairs, dtype=np.int32), 2)
        parts = np.tile(np.array([CHOSEN, REJECTED], np.int32), pairs)
        return replace(batch, answers=Answers(examples, parts, np.zeros(2 * pairs)))

    def of_scores(self, targets: Targets, scores: Numbers) -> tuple[float, Numbers]:
        chosen, rejected = self._places(targets)
        d, both = scores[chosen, 0] - scores[rejected, 0] - self.margin, scores[chosen, 0] + scores[rejected, 0]
        slopes = np.zeros_like(scores)
        slopes[chosen, 0] = 2 * self.center_rewards * both - sigmoid(-d)
        slopes[rejected, 0] = 2 * self.center_rewards * both + sigmoid(-d)
        return float((self.center_rewards * both**2 - log_sigmoid(d)).sum()), slopes

    def measures(self, targets: Targets, logp: PerTarget) -> Measures:
        scores = scores_in(logp)[:, 0]
        chosen, rejected = (scores[place] for place in self._places(targets))
        values = {
            "chosen_reward": chosen,
            "rejected_reward": rejected,
            "accuracy": (1 + np.sign(chosen - rejected)) / 2,  # a tie counts as half
        }
        return {name: Measured(float(each.sum()), len(each)) for name, each in values.items()}

    def summary(self, totals: Measures) -> dict[str, float]:
        return with_margin(super().summary(totals))

    def _places(self, targets: Targets) -> tuple[Places, Places]:
        """Return the rows of the chosen and of the rejected answer of each pair."""
        parts = answers_of(targets).parts
        row_of = np.full(len(parts), -1)
        row_of[targets.sequences] = np.arange(len(targets.sequences))
        return row_of[parts == CHOSEN], row_of[parts == REJECTED]


OBJECTIVE = Reward
