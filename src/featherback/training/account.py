"""What the programs of a command hold, one after the other, beside the command's budget.

`featherback train` is several programs in turn, each in the place of the one before. Each adds what it came to hold, or
what is known to be needed, and hands the account to the next. If the budget turns out to be too little, the rest goes
on with the least memory, up to the first step, and the command then refuses with an amount that all of them accept.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from featherback.sizes import MB

LEAST = "least"
"""--memory's word for the least that is enough, as `memory.plan` knows it."""
BETWEEN_RUNS = 1 * MB
"""More than what two runs of the same program hold differs by."""


@dataclass
class Account:
    """`limit`: the budget in bytes, None without one. `needed`: the most that was held or is known to be needed."""

    limit: int | None = None
    needed: int = 0
    refused: bool = False
    """The limit is too little: only the least that is enough is still looked for."""
    least: bool = False
    """No amount was named, but the least that is enough."""

    @property
    def searches(self) -> bool:
        """Whether the least that is enough is looked for."""
        return self.refused or self.least

    def add(self, nbytes: int) -> None:
        """So many bytes are needed."""
        self.needed = max(self.needed, nbytes)

    def add_own(self) -> None:
        """What this program has held so far is needed."""
        if peak := own_peak():
            self.add(peak + BETWEEN_RUNS)

    @property
    def is_over(self) -> bool:
        """Whether more is needed than the limit, which is not known to be too little yet."""
        return not self.searches and self.limit is not None and self.needed > self.limit

    def check_own(self) -> None:
        """BudgetError if this program has held more than the limit."""
        peak = own_peak()
        if not self.searches and self.limit is not None and peak > self.limit:
            from featherback.memory.budget import BudgetError

            raise BudgetError("The preparation of the data", self.limit, peak + BETWEEN_RUNS)


def own_peak() -> int:
    """Bytes that were resident at most since this program began; 0 where the system does not tell."""
    from featherback.host.process_tree import sizes  # what only begins goes without

    return sizes(os.getpid()).get("VmHWM", 0)
