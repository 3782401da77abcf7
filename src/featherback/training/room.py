"""Whether the preparation of data stays within the budget that the whole command has."""

from __future__ import annotations

import os
import time

from featherback.errors import FeatherbackError
from featherback.host.process_tree import held_alone
from featherback.naming import argument

MB = 10**6
_SECONDS = 0.2  # between two looks, each of which takes milliseconds


class Room:
    """Looks at what this process and its children hold together, in bytes. Where the system does not tell, nothing is
    checked."""

    def __init__(self, data: str, budget: int) -> None:
        self._data, self._budget = data, budget
        self._most, self._looked = 0, 0.0

    def look(self, now: bool = False) -> None:
        """Remember what is held if it is the most so far; unless it has to be `now`, only once in a while."""
        if now or time.monotonic() - self._looked > _SECONDS:
            self._most = max(self._most, held_alone(os.getpid()))
            self._looked = time.monotonic()

    def check(self) -> None:
        """FeatherbackError, with the budget that would do, if more was held than is allowed."""
        if self._most > self._budget:
            least = self._most // MB + 2  # what differs between two runs of the same is less than one
            raise FeatherbackError(
                f"Preparing {self._data} does not fit in {self._budget // MB}MB: with this model's vocabulary the "
                f"least is {argument('memory', f'{least}MB')}."
            )
