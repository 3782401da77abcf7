"""Objectives that watch: one that adds up measures while it trains, and one that only keeps log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from featherback.data.batch import Batch, Targets
from featherback.nn.objectives.base import Measured, Numbers, Objective, PerTarget
from featherback.nn.objectives.preference import sums_of

_SAME = (
    "whole_batch", "over_vocabulary", "over_prompt", "data_form", "most_answers", "needs_reference", "scores",
    "pooling",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recorded(Objective):
    """Another objective, with the sums of its measures since they were last taken."""

    inner: Objective
    totals: dict[str, Measured] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _SAME:
            object.__setattr__(self, name, getattr(self.inner, name))

    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        for name, each in self.inner.measures(targets, logp).items():
            before = self.totals.get(name, Measured(0.0, 0))
            self.totals[name] = Measured(before.total + each.total, before.count + each.count)
        return self.inner(targets, logp)

    def outputs(self, labels: Sequence[str] | None) -> tuple[str, ...]:
        return self.inner.outputs(labels)

    @property
    def room(self) -> int:
        return self.inner.room

    @property
    def further_temperature(self) -> float | None:
        return self.inner.further_temperature

    def fullest(self, batch: Batch) -> Batch:
        return self.inner.fullest(batch)

    def host_bytes(self, tokens: int, width: int) -> int:
        return self.inner.host_bytes(tokens, width)

    def take(self) -> dict[str, float]:
        """Return what the objective shows of the measures, and forget them."""
        found = self.inner.summary(self.totals)
        self.totals.clear()
        return found


@dataclass(frozen=True, kw_only=True)
class AnswerSums(Objective):
    """Keeps the log-probability of each answer. Its loss is 0."""

    whole_batch: ClassVar[bool] = True
    found: list[Numbers] = field(default_factory=list)  # of each batch (A,)

    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        self.found.append(sums_of(targets, logp)[0])
        return 0.0, PerTarget(0.0, np.zeros(len(targets.further_rows)))
