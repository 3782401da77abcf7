"""Learning-rate schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass

from featherback.errors import FeatherbackError

SCHEDULES = ("cosine", "linear", "constant")


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each step, counted from 1: a linear rise over `warmup` steps, then `kind`.

    Linear and cosine would reach 0 at step `steps + 1`, so that no step is wasted on a rate of 0.
    """

    kind: str
    peak: float
    steps: int
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.kind not in SCHEDULES:
            raise FeatherbackError(f"Unknown schedule {self.kind!r}; choose from {', '.join(SCHEDULES)}.")

    def __call__(self, step: int) -> float:
        """The learning rate of `step`, 1 <= step <= steps."""
        if step <= self.warmup:
            return self.peak * step / self.warmup
        progress = (step - self.warmup - 1) / max(1, self.steps - self.warmup)
        if self.kind == "linear":
            return self.peak * (1 - progress)
        if self.kind == "cosine":
            return self.peak * (1 + math.cos(math.pi * progress)) / 2
        return self.peak
