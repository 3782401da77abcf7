"""What objectives on preferences have in common: the log-probability of whole answers.

An objective on pairs is a function of the scores of a chosen and a rejected answer. `Pairwise.compare` returns it with
its derivatives with respect to the scores; everything else is here. docs/derivations/loss.md lists the formulas.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from featherback.core.options import option
from featherback.data.batch import CHOSEN, REJECTED, Answers, Batch, ExtraTargets, Targets
from featherback.nn.objectives.base import Measured, Measures, Numbers, Objective, PerTarget

SMALLEST_PAIR = 3
"""Fewest tokens of a pair in a batch: a token of the prompt, and one of each answer."""


Indices = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Preference(Objective):
    """A loss of whole answers, summed over examples."""

    whole_batch: ClassVar[bool] = True
    measured: ClassVar[bool] = True
    most_answers: ClassVar[int] = 2
    rate: ClassVar[float] = 0.03  # measured: docs/decisions/preferences.md

    beta: float = option(
        0.1, above=0, help="How strongly preferences count. With a reference, smaller values let answers move further."
    )

    def summary(self, totals: Measures) -> dict[str, float]:
        return with_margin(super().summary(totals))

    def fullest(self, batch: Batch) -> Batch:
        count = -(-batch.n_sequences // 2)
        rows = np.arange(0, batch.n_tokens - SMALLEST_PAIR + 1, SMALLEST_PAIR, dtype=np.int32)
        examples = np.repeat(np.arange(count, dtype=np.int32), 2)
        parts = np.tile(np.array([CHOSEN, REJECTED], np.int32), count)
        return replace(
            batch,
            weights=np.ones(batch.n_tokens) if self.over_prompt else None,
            further=ExtraTargets(rows, 0 * rows, np.ones(len(rows)), 0 * rows),
            answers=Answers(examples, parts, np.zeros(2 * count)),
        )


@dataclass(frozen=True, kw_only=True)
class Pairwise(Preference):
    """A loss that compares the chosen answer of each pair with the rejected one."""

    data_form: ClassVar[str] = "pairs"
    per_token: ClassVar[bool] = False  # scores are means over an answer's tokens, not sums

    @abstractmethod
    def compare(self, chosen: Numbers, rejected: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return the loss of each pair (P,), and its derivatives with respect to the chosen and the rejected score.

        A score is the answer's log-probability, minus the reference's if `needs_reference`, and divided by the answer's
        length if `per_token`.
        """

    @property
    def likelihood_weight(self) -> float:
        """The weight of the next-token loss of the chosen answers, with their prompts if `over_prompt`."""
        return 0.0

    def rewards(self, answers: Answers, logp: Numbers, lengths: Numbers) -> Numbers:
        """Return each answer's reward (A,), as it is shown."""
        return self.beta * self._scores(answers, logp, lengths)

    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        answers, (sums, lengths) = answers_of(targets), sums_of(targets, logp)
        chosen, rejected = _pairs(answers)
        scores = self._scores(answers, sums, lengths)
        losses, of_chosen, of_rejected = self.compare(scores[chosen], scores[rejected])
        slopes = np.zeros(len(sums))
        slopes[chosen], slopes[rejected] = of_chosen, of_rejected
        if self.per_token:
            slopes /= lengths
        loss, first, further = float(losses.sum()), *per_target(targets, slopes)
        if self.likelihood_weight:
            mine = answers.parts[targets.sequences] == CHOSEN
            share = self.likelihood_weight * len(chosen) / max(1, int(np.count_nonzero(mine)))
            loss -= share * float(np.sum(mine * logp.first))
            first = first - share * mine
        return loss, PerTarget(first, further)

    def measures(self, targets: Targets, logp: PerTarget) -> Measures:
        answers = answers_of(targets)
        chosen, rejected = _pairs(answers)
        sums, lengths = sums_of(targets, logp)
        rewards = self.rewards(answers, sums, lengths)
        values = {
            "chosen_reward": rewards[chosen],
            "rejected_reward": rewards[rejected],
            "accuracy": (1 + np.sign(rewards[chosen] - rewards[rejected])) / 2,  # a tie counts as half
        }
        found = {name: Measured(float(each.sum()), len(each)) for name, each in values.items()}
        return {**found, **log_probabilities(answers, sums, lengths)}

    def _scores(self, answers: Answers, sums: Numbers, lengths: Numbers) -> Numbers:
        scores = sums - answers.reference if self.needs_reference else sums
        return scores / lengths if self.per_token else scores


def log_probabilities(answers: Answers, sums: Numbers, lengths: Numbers) -> Measures:
    """Measure the log-probability of wanted and of unwanted answers, in nats per token."""
    return {
        name: Measured(float(sums[answers.parts == part].sum()), int(lengths[answers.parts == part].sum()))
        for name, part in (("chosen_logp", CHOSEN), ("rejected_logp", REJECTED))
    }


def with_margin(means: dict[str, float]) -> dict[str, float]:
    """Add the margin between the mean rewards of chosen and rejected answers, if both are known."""
    if means.keys() >= {"chosen_reward", "rejected_reward"}:
        means["margin"] = means["chosen_reward"] - means["rejected_reward"]
    return means


def answers_of(targets: Targets) -> Answers:
    """Return what the sequences of a batch of preferences are."""
    assert targets.answers is not None
    return targets.answers


def sums_of(targets: Targets, logp: PerTarget) -> tuple[Numbers, Numbers]:
    """Return the log-probability of each answer (A,), and the number of its targets, at least 1."""
    count, own = len(answers_of(targets).parts), targets.sequences
    weights = np.ones(len(own)) if targets.weights is None else targets.weights

    def by_answer(first: Numbers | float, further: Numbers) -> Numbers:
        found = np.bincount(own, weights * first, count) + np.bincount(targets.further_sequences, further, count)
        return found.astype(np.float64)

    lengths = by_answer(1.0, np.ones(len(targets.further_sequences)))
    return by_answer(logp.first, logp.further), np.maximum(lengths, 1)


def per_target(targets: Targets, slopes: Numbers) -> tuple[Numbers, Numbers]:
    """Turn `slopes` (A,), the derivatives by answers' sums, into those by first (n,) and further (E,) targets."""
    first = slopes[targets.sequences]
    return first if targets.weights is None else first * targets.weights, slopes[targets.further_sequences]


def _pairs(answers: Answers) -> tuple[Indices, Indices]:
    """Return the sequences of the chosen and of the rejected answer of each pair."""
    return np.flatnonzero(answers.parts == CHOSEN), np.flatnonzero(answers.parts == REJECTED)


def log_sigmoid(x: Numbers) -> Numbers:
    """Return log sigmoid(x), without overflow."""
    return -np.logaddexp(0, -x)


def sigmoid(x: Numbers) -> Numbers:
    """Return 1 / (1 + exp(-x)), without overflow."""
    return np.exp(log_sigmoid(x))
