"""The budget of a process, asked before memory is taken."""

from __future__ import annotations

from dataclasses import dataclass

from featherback.core.naming import argument
from featherback.core.sizes import MB, whole_megabytes
from featherback.engine import kernels
from featherback.errors import FeatherbackError


class BudgetError(FeatherbackError):
    """`what` does not fit in `limit` bytes; `needed` are enough. `advice`: what else would help, a clause."""

    def __init__(self, what: str, limit: int, needed: int, advice: str = "") -> None:
        self.what, self.limit, self.needed, self.advice = what, limit, whole_megabytes(needed), advice
        least = argument("memory", f"{self.needed // MB}MB")
        super().__init__(
            f"{what} does not fit in {limit / MB:.0f}MB: with these options the least is {least}"
            f"{advice and '; '}{advice}."
        )


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
            raise BudgetError(what, self.limit, self.limit - room + nbytes)
