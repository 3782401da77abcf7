"""Labels of whole texts: cross-entropy over the scores of the last token, as in transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from featherback.data.batch import Targets
from featherback.nn.objectives.base import Measured, Measures, Numbers, PerTarget
from featherback.nn.objectives.scored import Scored, scores_in

_PARTS = ("right", "predicted", "actual")
"""What is counted of each label: texts for which it is right, for which it is predicted, and that have it."""


@dataclass(frozen=True, kw_only=True)
class Classify(Scored):
    """- log softmax(scores)[label], summed over texts."""

    scores: ClassVar[str] = "label"
    data_form: ClassVar[str] = "classes"
    measured: ClassVar[bool] = True

    def outputs(self, labels: Sequence[str] | None) -> tuple[str, ...]:
        return tuple(labels or ("0", "1"))

    def of_scores(self, targets: Targets, scores: Numbers) -> tuple[float, Numbers]:
        each = np.arange(len(scores))
        logp = log_softmax(scores)
        slopes = np.exp(logp)
        slopes[each, targets.ids] -= 1
        return -float(logp[each, targets.ids].sum()), slopes

    def measures(self, targets: Targets, logp: PerTarget) -> Measures:
        scores = scores_in(logp)
        best, count = scores.argmax(1), scores.shape[1]
        of_part = {
            "right": np.bincount(best[best == targets.ids], minlength=count),
            "predicted": np.bincount(best, minlength=count),
            "actual": np.bincount(targets.ids, minlength=count),
        }
        return {
            f"{part} {label}": Measured(float(of_part[part][label]), len(scores))
            for label in range(count)
            for part in _PARTS
        }

    def summary(self, totals: Measures) -> dict[str, float]:
        """Return the accuracy and the macro-F1: the mean over labels of 2 right / (predicted + actual).

        Labels that neither occur nor are predicted are left out, as in scikit-learn.
        """
        if not totals:
            return {}
        right, predicted, actual = (
            np.array([each.total for name, each in totals.items() if name.startswith(f"{part} ")]) for part in _PARTS
        )
        seen = predicted + actual > 0
        f1 = 2 * right[seen] / (predicted + actual)[seen]
        return {"accuracy": float(right.sum() / actual.sum()), "macro_f1": float(f1.mean())}


def log_softmax(scores: Numbers) -> Numbers:
    """Return the log-probabilities (n, K) of the columns of each row."""
    shifted: Numbers = scores - scores.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


OBJECTIVE = Classify
