"""What objectives on rollouts have in common: the model writes the answers itself, and a reward judges them.

An objective turns the rewards of a step's answers into an advantage and a weight for each (`judge`). The loss is a
function of the log-probabilities of the tokens, now and when they were sampled (docs/derivations/loss.md).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from featherback.core.options import option
from featherback.data.batch import Batch, Rollouts, Targets
from featherback.nn.objectives.base import Numbers, Objective


@dataclass(frozen=True, kw_only=True)
class Sampled(Objective):
    """A loss of the model's own answers, summed over answers."""

    data_form: ClassVar[str] = "prompts"
    measured: ClassVar[bool] = True
    rate: ClassVar[float] = 0.1  # a careful choice, not a measurement

    prompts: int = option(8, least=1, help="Prompts per optimizer step.")
    answers: int = option(8, least=2, help="Answers that the model writes to each prompt of a step.")
    answer_tokens: int = option(128, least=1, help="Maximum tokens of an answer that the model writes.")
    updates: int = option(
        1, least=1, help="Optimizer updates with the answers of a step. With more than one, answers are used again."
    )

    @abstractmethod
    def judge(self, rewards: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers]:
        """Return advantage and weight of each answer of a step (P, G).

        `rewards`, `lengths` (P, G): of G answers to each of P prompts. The loss is the sum over answers of the weight
        times the sum over its tokens, divided by P * G. Answers with the advantage 0 add nothing to it.
        """

    @property
    def room(self) -> int:
        return self.answer_tokens

    @property
    def rounds(self) -> int:
        """How often a step may sample to replace prompts whose answers all have the same reward."""
        return 1

    def fullest(self, batch: Batch) -> Batch:
        count = batch.n_sequences
        return replace(batch, rollouts=Rollouts(np.zeros(batch.n_tokens), np.ones(count), np.ones(count)))


def rollouts_of(targets: Targets) -> Rollouts:
    """Return what a batch of rollouts knows of its answers."""
    assert targets.rollouts is not None
    return targets.rollouts
