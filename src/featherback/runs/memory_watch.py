"""Keeps the preparation of data within its memory budget."""

from __future__ import annotations

import os
import time

from featherback.core.naming import argument
from featherback.core.sizes import MB
from featherback.data.record_size import LEAST_DECODED, MOST_DECODED, MOST_RECORD, SHORT
from featherback.engine.host.process_tree import tree_unshared_rss
from featherback.errors import FeatherbackError
from featherback.runs.account import BETWEEN_RUNS

_SECONDS = 0.2  # between two measurements, each of which takes milliseconds
_SPARE = 6 * MB  # memory that grows for other reasons than long records: tokenizer tables, hashes of examples
_LEAST_READING = 5  # memory per byte of a record, at least, once it is read and parsed


class MemoryWatch:
    """Measures the memory of this process and its children, and decides whether a long record fits in the budget.

    All amounts are in bytes. Nothing is checked where the system does not report memory.
    """

    def __init__(self, data: str, budget: int | None = None, root: int | None = None) -> None:
        """`data`: the name of the data for messages. `budget`: in bytes; None to measure how much is needed.

        `root`: a process that waits for this one, and is measured with it; None: there is none.
        """
        self._data, self._budget, self._root = data, budget, root or os.getpid()
        self._most, self._looked = 0, 0.0
        self._before = 0  # used before the first long record; later, memory of an earlier record may be reused
        self._admitted = False
        self._needed, self._longest = 0, ("", 0)
        self._lent = self._decoding = 0  # what a process may take to decode rows, and what one took

    def sample_memory(self, now: bool = False) -> None:
        """Measure the memory in use and remember the peak. Unless `now`, measure at most every 0.2 seconds."""
        if now or time.monotonic() - self._looked > _SECONDS:
            self._most = max(self._most, tree_unshared_rss(self._root))
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
                f"{argument('memory', f'{(self._needed + BETWEEN_RUNS) // MB + 2}MB')}, or split the example."
            )
