"""How much of the processor others use while something is measured, from the counters of Linux.

A time that was measured while others compute means nothing: a row is measured only on a quiet machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MOST_OTHERS = 0.03
"""Share of the processor that others may use."""
MOST_STEAL = 0.02
"""Share of the processor that a virtual machine's host may withhold."""
LOOK_SECONDS = 5.0
PATIENCE_SECONDS = 600.0
_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class Counters:
    """Seconds of processor time since the system started: all cores together."""

    total: float
    busy: float
    stolen: float
    own: float  # this process and the children that it has waited for

    @classmethod
    def now(cls, stat: Path = _STAT) -> Counters | None:
        """The counters; None where the system has none."""
        try:
            words = stat.read_text().split("\n", 1)[0].split()[1:9]
        except OSError:
            return None
        user, nice, system, idle, waiting, irq, softirq, stolen = (
            int(word) / os.sysconf("SC_CLK_TCK") for word in words
        )
        busy = user + nice + system + irq + softirq
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        return cls(busy + idle + waiting + stolen, busy, stolen, own)


@dataclass(frozen=True)
class Disturbance:
    """Shares of the processor, from 0 to 1."""

    others: float
    steal: float

    @classmethod
    def between(cls, before: Counters, after: Counters) -> Disturbance:
        """What others used between two looks."""
        total = max(after.total - before.total, 1e-9)
        others = (after.busy - before.busy) - (after.own - before.own)
        return cls(max(0.0, others / total), (after.stolen - before.stolen) / total)

    @property
    def is_small(self) -> bool:
        """Whether a measurement meanwhile can be trusted."""
        return self.others <= MOST_OTHERS and self.steal <= MOST_STEAL

    def __str__(self) -> str:
        return f"others used {self.others:.0%} of the processor, and {self.steal:.0%} was withheld"


def wait(
    say: Callable[[str], None], patience: float = PATIENCE_SECONDS, look: Callable[[], Disturbance | None] | None = None
) -> Disturbance | None:
    """Wait until the machine is quiet, at most `patience` seconds. Returns the last disturbance if it is too large."""
    look = look or looked
    began, told = time.monotonic(), False
    while (found := look()) is not None and not found.is_small:
        if time.monotonic() - began >= patience:
            return found
        if not told:
            say(f"  waiting for a quiet machine: {found}")
            told = True
    return None


def looked() -> Disturbance | None:
    """What others use now; None where the system does not say."""
    before = Counters.now()
    if before is None:
        return None
    time.sleep(LOOK_SECONDS)
    after = Counters.now()
    assert after is not None
    return Disturbance.between(before, after)
