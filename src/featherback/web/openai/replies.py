"""Answers as text: the tokens of tickets become pieces, without stop strings, and the event loop never waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.infer.batching import Emitted, Ticket
from featherback.web.refusal import RefusedError


class Stops:
    """The stop strings of an answer. The one that is complete first counts, however the text is cut into pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None
        """The stop string that was found."""

    def push(self, piece: str) -> str:
        """Add a piece and return the text that surely comes before a stop string. Nothing after one is returned."""
        if self.found is not None:
            return ""
        text = self._held + piece
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            _, at, self.found = min(ends)
            self._held = ""
            return text[:at]
        kept = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """Return the text that was held back, because the answer has ended."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` with which `stop` begins. `text` does not contain `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)


Finish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class Piece:
    """A part of an answer."""

    text: str
    tokens: Sequence[Emitted] = field(default_factory=list)
    """The tokens whose text ends in `text`."""
    finish: Finish | None = None
    """Set in the last piece."""
    calls: Sequence[Mapping[str, Any]] = ()
    """The tool calls of the answer, in the form of the API."""


class Reply:
    """The answer that arrives on a ticket."""

    def __init__(self, ticket: Ticket, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self.ticket = ticket
        self._stream, self._stops = tokenizer.stream(), Stops(stops)
        self._length, self._sent = 0, 0  # characters that the tokens so far have, and that were returned
        self._waiting: deque[tuple[int, Emitted]] = deque()  # tokens not returned yet, with the end of their text

    def read(self) -> Piece | None:
        """Return what has come since the last call; None if it is nothing. Raises the error of a failed answer."""
        ended = self.ticket.done  # before the tokens are taken, so that none is left behind
        text = "".join(map(self._add, self.ticket.take()))
        if self._stops.found is not None:
            self.ticket.cancel()
            return self._piece(text, "stop")
        if not ended:
            return self._piece(text) if text else None
        if self.ticket.error is not None:
            raise self.ticket.error
        if self.ticket.finish_reason == "cancelled":
            raise RefusedError("The server is ending.", 503, retry_after=5)
        rest = self._stream.flush()
        self._length += len(rest)
        text += self._stops.push(rest) + self._stops.flush()
        finish: Finish = "length" if self.ticket.finish_reason == "length" and self._stops.found is None else "stop"
        return self._piece(text, finish)

    def _add(self, emitted: Emitted) -> str:
        """Return the text that a token completes."""
        piece = self._stream.push(emitted.token)
        self._length += len(piece)
        self._waiting.append((self._length, emitted))
        return self._stops.push(piece) if piece else ""

    def _piece(self, text: str, finish: Finish | None = None) -> Piece:
        self._sent += len(text)
        tokens = []
        while self._waiting and self._waiting[0][0] <= self._sent:
            tokens.append(self._waiting.popleft()[1])
        return Piece(text, tokens, finish)


async def ended(ticket: Ticket) -> None:
    """Wait until a ticket is done."""
    changed = _changes([ticket])
    while not ticket.done:
        changed.clear()
        if not ticket.done:
            await changed.wait()


def _changes(tickets: Iterable[Ticket]) -> asyncio.Event:
    """Return an event that is set when one of the tickets changes."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(changed.set)

    for ticket in tickets:
        ticket.listen(tell)
    return changed


async def pieces(replies: Sequence[Reply]) -> AsyncGenerator[tuple[int, Piece], None]:
    """Yield the pieces of several answers as they come, each with the index of its reply."""
    changed = _changes(reply.ticket for reply in replies)
    unfinished = dict(enumerate(replies))
    while unfinished:
        changed.clear()
        for index, reply in [*unfinished.items()]:
            if (piece := reply.read()) is not None:
                if piece.finish is not None:
                    del unfinished[index]
                yield index, piece
        if unfinished:
            await changed.wait()
