"""Learning-rate schedules. To add one, write a function and decorate it with `@_schedule`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from featherback.errors import FeatherbackError, expected

Rate = Callable[[float], float]
"""Maps progress after the warm-up, 0 <= progress < 1, to a share of the peak rate. Progress 0 gives 1."""

SCHEDULES: dict[str, Rate] = {}
"""Every schedule by name. The name is that of its function."""


def _schedule(rate: Rate) -> Rate:
    SCHEDULES[rate.__name__] = rate
    return rate


@_schedule
def cosine(progress: float) -> float:
    """Half a cosine wave (Loshchilov and Hutter, ICLR 2017, arXiv 1608.03983, without restarts)."""
    return (1 + math.cos(math.pi * progress)) / 2


@_schedule
def linear(progress: float) -> float:
    """A straight line to zero."""
    return 1 - progress


@_schedule
def constant(progress: float) -> float:
    """The peak rate throughout."""
    return 1.0


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each step (from 1): a linear rise over `warmup` steps, then the schedule `name`.

    Linear and cosine would reach 0 at step `steps + 1`, so that no step is wasted on a rate of 0.
    Raises FeatherbackError for an unknown name.
    """

    name: str
    peak: float
    steps: int
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.name not in SCHEDULES:
            raise FeatherbackError(f"Unknown schedule {self.name!r}; {expected(self.name, SCHEDULES)}")

    def __call__(self, step: int) -> float:
        """Return the learning rate of `step`, 1 <= step <= steps."""
        if step <= self.warmup:
            return self.peak * step / self.warmup
        progress = (step - self.warmup - 1) / max(1, self.steps - self.warmup)
        return self.peak * SCHEDULES[self.name](progress)
