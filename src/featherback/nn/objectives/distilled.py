"""Distillation (Hinton et al., 2015, arXiv 1503.02531) from the most likely tokens of a teacher.

All other tokens form one class, the tail. docs/derivations/loss.md has the formulas. A run uses this objective if it
has a teacher, so it is not among the choices of `--objective`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from featherback.data.batch import Batch, ExtraTargets, Targets
from featherback.nn.objectives.base import Measured, Measures, Numbers, Objective, PerTarget

LEAST_TAIL = 1e-6
"""Smallest probability of the student's tail, which float32 logits can still distinguish from 0."""
HOST_BYTES = 160
"""Bytes per stored entry of a batch in arrays outside the arena, at their peak (tests/methods/test_distillation.py)."""


@dataclass(frozen=True, kw_only=True)
class Distilled(Objective):
    """(1 - w) * next-token loss + w T^2 * (divergence of the student's distribution from the teacher's).

    Both distributions have the temperature T. The further targets of a row are the teacher's likely tokens, and their
    weights are the teacher's probabilities.
    """

    measured: ClassVar[bool] = True

    weight: float  # w
    temperature: float  # T
    top_k: int  # likely tokens per row

    @property
    def further_temperature(self) -> float:
        return self.temperature

    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        rows, shares = targets.further_rows, np.ones(len(targets.rows)) if targets.weights is None else targets.weights
        soft = self.weight * self.temperature**2
        s, (of_teacher, of_student) = np.exp(logp.further), _tails(targets, logp)
        slopes = soft * shares[rows] * ((of_teacher / of_student)[rows] * s - targets.further_weights)
        loss = float(np.sum(shares * ((self.weight - 1) * logp.first + soft * _divergence(targets, logp))))
        return loss, PerTarget((self.weight - 1) * shares, slopes)

    def measures(self, targets: Targets, logp: PerTarget) -> Measures:
        count = len(targets.rows)
        return {
            "next_token_loss": Measured(-float(np.sum(logp.first)), count),
            "divergence": Measured(float(np.sum(_divergence(targets, logp))), count),
        }

    def fullest(self, batch: Batch) -> Batch:
        rows = np.repeat(np.arange(batch.n_tokens, dtype=np.int32), self.top_k)
        return replace(batch, further=ExtraTargets(rows, 0 * rows, np.full(len(rows), 1 / (1 + self.top_k))))

    def host_bytes(self, tokens: int, width: int) -> int:
        return HOST_BYTES * self.top_k * tokens


def _tails(targets: Targets, logp: PerTarget) -> tuple[Numbers, Numbers]:
    """Return the probability of each row's tail (n,): the teacher's and the student's."""
    n, rows = len(targets.rows), targets.further_rows
    of_teacher = 1 - np.bincount(rows, targets.further_weights, n)
    of_student = 1 - np.bincount(rows, np.exp(logp.further), n)
    return np.maximum(of_teacher, 0), np.maximum(of_student, LEAST_TAIL)


def _divergence(targets: Targets, logp: PerTarget) -> Numbers:
    """Return the Kullback-Leibler divergence of each row (n,): sum of t (log t - log s) over likely tokens and tail."""
    t, (of_teacher, of_student) = targets.further_weights, _tails(targets, logp)
    inside = np.bincount(targets.further_rows, _times_log(t) - t * logp.further, len(targets.rows))
    found: Numbers = inside + _times_log(of_teacher) - of_teacher * np.log(of_student)
    return found


def _times_log(t: Numbers) -> Numbers:
    """Return t log t, which is 0 at 0."""
    found: Numbers = t * np.log(np.where(t > 0, t, 1))
    return found
