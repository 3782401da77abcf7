"""Places for the processes of JSON schemas, which clients get in turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from featherback.infer.waiting import Waiting


@dataclass(frozen=True, eq=False)
class _Turn:
    client: str
    come: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Turns:
    """Gives out places. A client waits for its own turns; used by the event loop, except what `turn` yields."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting = Waiting[_Turn]()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[Callable[[], None]]:
        """Wait for a place. The client's next turn comes when the context ends.

        Yields a function that frees the place, to be called once, in any thread.
        """
        loop, turn = asyncio.get_running_loop(), _Turn(client)

        def free() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._give, 1)

        self._waiting.add(turn)
        self._give(0)
        try:
            await turn.come
        except asyncio.CancelledError:
            self._waiting.remove(turn)
            if turn.come.done() and not turn.come.cancelled():
                self._waiting.answered(turn)
                free()
            raise
        try:
            yield free
        finally:
            self._waiting.answered(turn)
            self._give(0)

    def _give(self, freed: int) -> None:
        """Give free places to those whose turn it is."""
        self._free += freed
        while self._free and (turn := self._waiting.next()) is not None:
            if turn.come.cancelled():  # it leaves in this turn of the event loop
                self._waiting.remove(turn)
                continue
            self._waiting.take(turn)
            turn.come.set_result(None)
            self._free -= 1
