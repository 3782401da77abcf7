"""The budget of a process, asked before memory is taken."""

from __future__ import annotations

from dataclasses import dataclass

from featherback import kernels
from featherback.errors import FeatherbackError

MB = 10**6


class BudgetError(FeatherbackError):
    """Something does not fit in the budget. `needed`: the budget that is enough for it, in bytes."""

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


@dataclass(frozen=True)
class Budget:
    """What a process may hold, resident. Every phase that takes memory asks it first.

    `limit` in bytes; None: whatever the machine has.
    """

    limit: int | None = None

    @property
    def room(self) -> int | None:
        """Bytes that may still be taken; None: as many as there are."""
        return None if self.limit is None else self.limit - kernels.memory_now()[1]

    def ask(self, nbytes: int, what: str) -> None:
        """BudgetError if `nbytes` more do not fit. `what` is about to take them: "the tokenizer"."""
        if (room := self.room) is not None and nbytes > room:
            assert self.limit is not None
            needed = self.limit - room + nbytes
            raise BudgetError(
                f"{what} needs {needed / MB:.0f} MB in all, and the budget is {self.limit / MB:.0f} MB.",
                needed,
            )
