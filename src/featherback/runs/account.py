"""What the programs of a command hold, one after the other, beside the command's budget.

`featherback train` is several programs in turn, each in the place of the one before. Each adds what it came to hold, or
what is known to be needed, and hands the account to the next. If the budget turns out to be too little, the rest goes
on with the least memory, up to the first step, and the command then refuses with an amount that all of them accept.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from featherback.core.naming import argument
from featherback.core.sizes import MB
from featherback.data.record_size import MOST_RECORD, SHORT
from featherback.engine.host.process_tree import held_alone, sizes
from featherback.errors import FeatherbackError

LEAST = "least"
"""--memory's word for the least that is enough, as `methods.memory.plan` knows it."""
BETWEEN_RUNS = 3 * MB
"""More than what two runs of the same program hold differs by."""
_SECONDS = 0.2  # between two looks, each of which takes milliseconds
_SPARE = 6 * MB  # what grows besides long records: tables of the tokenizer that are touched, marks of copies
_LEAST_READING = 5  # bytes that a record takes at least for each of its own, read and parsed


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
            from featherback.engine.budget import BudgetError

            raise BudgetError("The preparation of the data", self.limit, peak + BETWEEN_RUNS)


def own_peak() -> int:
    """Bytes that were resident at most since this program began; 0 where the system does not tell."""
    return sizes(os.getpid()).get("VmHWM", 0)


class Room:
    """Looks at what this process and its children hold together, in bytes, and admits long records by what they will
    take. Where the system does not tell what is held, nothing is checked."""

    def __init__(self, data: str, budget: int | None = None) -> None:
        """`budget`: in bytes; None if it is to be found out how much is needed."""
        self._data, self._budget = data, budget
        self._most, self._looked = 0, 0.0
        self._before = 0  # held before the first long record; afterwards some of what it took may be held for the next
        self._admitted = False
        self._needed, self._longest = 0, ("", 0)

    def look(self, now: bool = False) -> None:
        """Remember what is held if it is the most so far; unless it has to be `now`, only once in a while."""
        if now or time.monotonic() - self._looked > _SECONDS:
            self._most = max(self._most, held_alone(os.getpid()))
            self._looked = time.monotonic()
            if not self._admitted:
                self._before = max(self._before, self._most)

    @property
    def most(self) -> int:
        """Bytes of a record that are read before it is asked for."""
        if not self._before or self._budget is None:
            return MOST_RECORD
        return min(MOST_RECORD, max(SHORT, (self._budget - self._before - _SPARE) // _LEAST_READING))

    @property
    def refused(self) -> bool:
        return self._needed > 0

    def admits(self, where: str, size: int, takes: int, takes_at_most: int) -> bool:
        """Whether a record of `size` bytes has room, which now `takes` so many and `takes_at_most` later."""
        if not self._before or self._budget is None or self._before + takes + _SPARE <= self._budget:
            self._admitted = True
            return True
        if (needed := self._before + takes_at_most + _SPARE) > self._needed:
            self._needed, self._longest = needed, (where, size)
        return False

    @property
    def needed(self) -> int:
        """The budget that is enough for what was held so far, in bytes."""
        return self._most + BETWEEN_RUNS

    def check(self) -> None:
        """BudgetError, naming the budget that is enough, if more was held than is allowed."""
        if self._budget is not None and self._most > self._budget:
            from featherback.engine.budget import BudgetError

            raise BudgetError(f"Preparing {self._data}", self._budget, self.needed)

    def conclude(self) -> None:
        """FeatherbackError if a record was refused, with a budget that has room for each."""
        if self._budget is not None and self.refused:
            where, size = self._longest
            raise FeatherbackError(
                f"Preparing {self._data} does not fit in {self._budget / MB:.0f}MB: the example in {where} has "
                f"{size / MB:.1f} MB; {argument('memory', f'{self._needed // MB + 2}MB')} has room for it, or split it."
            )
