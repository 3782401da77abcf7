"""The memory account of a command: how much its processes need, compared with the command's budget.

`featherback train` and `evaluate` work in several processes, one after the other. Each adds its peak memory, or the
amount that it is known to need. If the budget turns out to be too small, the error names one that is enough for all
of them.
"""

from __future__ import annotations

import os

from featherback.core.sizes import MB
from featherback.engine.host.process_tree import sizes

LEAST = "least"
"""The value of --memory that asks for the smallest possible budget (see `methods.memory.plan`)."""
BETWEEN_RUNS = 3 * MB
"""Margin in bytes: two runs of the same program differ by less than this."""
_MOST_SPREAD = 3 * MB
"""How much more two preparations of much data may differ, in what waits between their threads."""
_UNSEEN = 1 * MB
"""What may be used between two measurements."""


class Account:
    """What a command may use and what it needs, in bytes.

    `limit`: the budget, or None. `least`: whether the user asked for the smallest possible budget (`--memory least`).
    `root`: the process that waits for the one that works. `used`: the largest amount that was measured. `needed`: the
    largest that is known to be needed so far, which is larger, because another run may use more. `spread`: a further
    margin, because the peak of preparing much data varies between runs.
    """

    def __init__(self, limit: int | None = None, root: int | None = None) -> None:
        self.limit, self.least = limit, False
        self.root = os.getpid() if root is None else root
        self.used = self.needed = self.spread = 0

    def limit_to(self, memory: int | str | None) -> None:
        """Set the budget to this value of --memory."""
        self.limit, self.least = memory if isinstance(memory, int) else None, memory == LEAST

    def add(self, nbytes: int) -> None:
        """Record that `nbytes` bytes are needed."""
        self.needed = max(self.needed, nbytes)

    def add_used(self, nbytes: int) -> None:
        """Record that `nbytes` bytes were used, so that another run needs somewhat more."""
        self.used = max(self.used, nbytes)
        self.add(nbytes + BETWEEN_RUNS + self.spread)

    def prepares(self, nbytes: int) -> None:
        """Record that this process prepares data that become `nbytes` bytes of tokens."""
        self.spread = max(self.spread, min(nbytes, _MOST_SPREAD))

    def add_peak(self, peak: int) -> None:
        """Record the peak of a process, together with what the waiting process holds. 0: the peak is unknown."""
        if peak:
            self.add_used(peak + (self.waits if self.root != os.getpid() else 0))

    def add_own(self) -> None:
        """Record this process's peak memory so far."""
        self.add_peak(own_peak())

    @property
    def waits(self) -> int:
        """Bytes that the waiting process holds; 0 where that is unknown."""
        return sizes(self.root, "smaps_rollup").get("Pss_Anon", 0)

    @property
    def is_prepared(self) -> bool:
        """Whether data have been prepared, so that what this needs is known."""
        return self.spread > 0

    @property
    def is_over(self) -> bool:
        """Whether more than the limit was used.

        An amount that another run named as needed is enough, because the margin between runs is not added again.
        """
        return self.limit is not None and self.used + _UNSEEN > self.limit


def own_peak() -> int:
    """Return the peak resident memory of this program in bytes; 0 where the system does not report it."""
    return sizes(os.getpid()).get("VmHWM", 0)
