"""The memory account of a command: how much its programs need, compared with the command's budget.

`featherback train` runs several programs in turn; each replaces the one before. Each program adds its peak memory, or
the amount that it is known to need, and passes the account on. If the budget turns out to be too small, the remaining
programs run with as little memory as possible up to the first step. The command then fails with an error that names a
budget large enough for all of them.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from featherback.core.naming import argument
from featherback.core.sizes import MB
from featherback.data.record_size import LEAST_DECODED, MOST_DECODED, MOST_RECORD, SHORT
from featherback.engine.host.process_tree import sizes, tree_unshared_rss
from featherback.errors import FeatherbackError

LEAST = "least"
"""The value of --memory that asks for the smallest possible budget (see `methods.memory.plan`)."""
BETWEEN_RUNS = 3 * MB
"""Margin in bytes: two runs of the same program differ by less than this."""
_MOST_SPREAD = 3 * MB
"""How much more two preparations of much data may differ, in what waits between their threads."""
_UNSEEN = 1 * MB
"""What may be used between two measurements."""
_SECONDS = 0.2  # between two measurements, each of which takes milliseconds
_SPARE = 6 * MB  # memory that grows for other reasons than long records: tokenizer tables, hashes of examples
_LEAST_READING = 5  # memory per byte of a record, at least, once it is read and parsed


@dataclass
class Account:
    """`limit`: the budget in bytes, or None. `needed`: the largest amount known to be needed so far, in bytes.

    `used`: the largest amount that was measured. The needed amount is larger, because another run may use more.
    """

    limit: int | None = None
    needed: int = 0
    used: int = 0
    refused: bool = False
    """True when the limit is known to be too small; the programs then only measure how much is needed."""
    least: bool = False
    """True if the user asked for the smallest possible budget (`--memory least`)."""
    spread: int = 0
    """Further margin in bytes, because the peak of preparing much data varies between runs."""

    @property
    def searches(self) -> bool:
        """Whether the programs of this command only measure the smallest budget that suffices."""
        return self.refused or self.least

    def add(self, nbytes: int) -> None:
        """Record that `nbytes` bytes are needed."""
        self.needed = max(self.needed, nbytes)

    def add_used(self, nbytes: int) -> None:
        """Record that `nbytes` bytes were used, so that another run needs somewhat more."""
        self.used = max(self.used, nbytes)
        self.add(nbytes + BETWEEN_RUNS + self.spread)

    def prepares(self, nbytes: int) -> None:
        """Record that this program prepares data that become `nbytes` bytes of tokens."""
        self.spread = max(self.spread, min(nbytes, _MOST_SPREAD))

    def add_own(self) -> None:
        """Record this program's peak memory so far as needed."""
        if peak := own_peak():
            self.add_used(peak)

    @property
    def is_over(self) -> bool:
        """Whether more than the limit was used, and this was not known before.

        An amount that another run named as needed is enough, because the margin between runs is not added again.
        """
        return not self.searches and self.limit is not None and self.used + _UNSEEN > self.limit

    def check_own(self) -> None:
        """Raise BudgetError if this program has used more than the limit."""
        peak = own_peak()
        if not self.searches and self.limit is not None and peak > self.limit:
            from featherback.engine.budget import BudgetError

            raise BudgetError("The preparation of the data", self.limit, peak + BETWEEN_RUNS + self.spread)


def own_peak() -> int:
    """Return the peak resident memory of this program in bytes; 0 where the system does not report it."""
    return sizes(os.getpid()).get("VmHWM", 0)


class MemoryWatch:
    """Measures the memory of this process and its children, and decides whether a long record fits in the budget.

    All amounts are in bytes. Nothing is checked where the system does not report memory.
    """

    def __init__(self, data: str, budget: int | None = None) -> None:
        """`data`: the name of the data for messages. `budget`: in bytes; None to measure how much is needed."""
        self._data, self._budget = data, budget
        self._most, self._looked = 0, 0.0
        self._before = 0  # used before the first long record; later, memory of an earlier record may be reused
        self._admitted = False
        self._needed, self._longest = 0, ("", 0)
        self._lent = self._decoding = 0  # what a process may take to decode rows, and what one took

    def sample_memory(self, now: bool = False) -> None:
        """Measure the memory in use and remember the peak. Unless `now`, measure at most every 0.2 seconds."""
        if now or time.monotonic() - self._looked > _SECONDS:
            self._most = max(self._most, tree_unshared_rss(os.getpid()))
            self._looked = time.monotonic()
            if not self._admitted:
                self._before = max(self._before, self._most)

    @property
    def most(self) -> int:
        """The length in bytes up to which a record is read without asking `admits`."""
        if not self._before or self._budget is None:
            return MOST_RECORD
        return min(MOST_RECORD, max(SHORT, (self._budget - self._before - _SPARE) // _LEAST_READING))

    @property
    def refused(self) -> bool:
        """Whether a record was too long for the budget."""
        return self._needed > 0

    def admits(self, where: str, size: int, takes: int, takes_at_most: int) -> bool:
        """Return whether a record of `size` bytes fits. It `takes` so much memory now, and `takes_at_most` later."""
        if not self._before or self._budget is None or self._before + takes + _SPARE <= self._budget:
            self._admitted = True
            return True
        if (needed := self._before + takes_at_most + _SPARE) > self._needed:
            self._needed, self._longest = needed, (where, size)
        return False

    def lend(self, where: str) -> int:
        """Lend half of what is left: the rows that the process decodes take as much again in this one."""
        lent = MOST_DECODED
        if self._before and self._budget is not None:
            lent = min(lent, (self._budget - self._before - _SPARE) // 2)
            if lent < LEAST_DECODED:
                self._needed = max(self._needed, self._before + _SPARE + 2 * LEAST_DECODED)
                self._longest = (where, 0)
                return 0
            self._before += lent
        self._lent = lent
        return lent

    def take_back(self, used: int) -> None:
        if self._before and self._budget is not None:
            self._before -= self._lent
        self._decoding = max(self._decoding, LEAST_DECODED, used)

    def lacks(self, where: str) -> bool:
        if self._lent >= MOST_DECODED:
            return True
        self._needed, self._longest = self._before + _SPARE + 2 * MOST_DECODED, (where, 0)
        return False

    @property
    def used(self) -> int:
        """The peak so far in bytes."""
        decoding = self._before + _SPARE + 2 * self._decoding if self._decoding else 0
        return max(self._most, decoding)

    def check(self) -> None:
        """Raise BudgetError, naming a sufficient budget, if the peak is above the budget."""
        if self._budget is not None and self._most > self._budget:
            from featherback.engine.budget import BudgetError

            raise BudgetError(f"Preparing {self._data}", self._budget, self.used + BETWEEN_RUNS)

    def conclude(self) -> None:
        """Raise FeatherbackError, naming a sufficient budget, if a record was too long."""
        if self._budget is not None and self.refused:
            where, size = self._longest
            cause = f"the example in {where} is {size / MB:.1f} MB long" if size else f"decoding {where} needs more"
            raise FeatherbackError(
                f"Preparing {self._data} does not fit in {self._budget / MB:.0f}MB: {cause}. Use "
                f"{argument('memory', f'{self._needed // MB + 2}MB')}, or split the example."
            )
