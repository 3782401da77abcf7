"""The memory budget of a process, which is asked before memory is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from featherback.core.naming import argument
from featherback.core.sizes import MB, whole_megabytes
from featherback.engine import kernels
from featherback.errors import FeatherbackError


class BudgetError(FeatherbackError):
    """Raised if `what` does not fit in `limit` bytes; `needed` bytes are enough.

    `advice` is a clause with another remedy.
    """

    def __init__(self, what: str, limit: int, needed: int, advice: str = "") -> None:
        self.what, self.limit, self.needed, self.advice = what, limit, whole_megabytes(needed), advice
        least = argument("memory", f"{self.needed // MB}MB")
        super().__init__(
            f"{what} does not fit in {limit / MB:.0f}MB: these options need at least {least}{advice and '; '}{advice}."
        )


@dataclass(frozen=True)
class Budget:
    """The memory that a process may hold, resident. Every phase asks it before allocating.

    `limit` is in bytes; None means no limit.
    """

    limit: int | None = None

    @property
    def room(self) -> int | None:
        """Bytes that may still be allocated; None means no limit."""
        return None if self.limit is None else self.limit - kernels.memory_now()[1]

    def ask(self, nbytes: int, what: str) -> None:
        """Raise BudgetError if `nbytes` more do not fit. `what` is about to allocate them: "the tokenizer"."""
        if (room := self.room) is not None and nbytes > room:
            assert self.limit is not None
            raise BudgetError(what, self.limit, self.limit - room + nbytes)
