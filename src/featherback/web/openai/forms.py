"""How answers are written: as one JSON object, or as a stream of server-sent events."""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.version import __version__
from featherback.web.openai.asked import Asked
from featherback.web.openai.calls import CallCollector
from featherback.web.openai.replies import Piece, Reply, pieces
from featherback.web.openai.service import Prompt, Service, while_connected
from featherback.web.refusal import RefusedError

JSON = dict[str, Any]

_LEAST_LOGPROB = -9999.0  # stands for a probability of zero, because JSON has no infinity


class Form(ABC):
    """The form of the answers to one request."""

    prefix: ClassVar[str]
    """The start of the answers' ids."""
    kind: ClassVar[str]
    """The value of "object" of a whole answer."""
    part: ClassVar[str]
    """The value of "object" of a part of a stream."""

    def __init__(self, model: str, tokenizer: Tokenizer, logprobs: int | None) -> None:
        self._tokenizer, self._logprobs = tokenizer, logprobs
        self._about = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"featherback-{__version__}",
        }

    @abstractmethod
    def choice(self, index: int, whole: Piece) -> JSON:
        """One answer, all of whose pieces are joined."""

    @abstractmethod
    def change(self, index: int, piece: Piece) -> JSON:
        """A piece of an answer in a stream."""

    def opening(self, count: int) -> Sequence[JSON]:
        """What a stream of `count` answers begins with."""
        return ()

    def whole(self, choices: Sequence[JSON], usage: JSON) -> JSON:
        """The answers as one object."""
        return {**self._about, "object": self.kind, "choices": choices, "usage": usage}

    def event(self, choices: Sequence[JSON], usage: JSON | None = None) -> JSON:
        """A part of a stream."""
        return {**self._about, "object": self.part, "choices": choices, "usage": usage}

    def begins(self, count: int) -> Sequence[JSON]:
        """The events with which a stream of `count` answers begins."""
        opening = self.opening(count)
        return [self.event(opening)] if opening else []

    def goes_on(self, index: int, piece: Piece) -> Sequence[JSON]:
        """The events for a piece of an answer."""
        return [] if piece == Piece("") else [self.event([self.change(index, piece)])]

    def ends(self, usage: JSON) -> Sequence[JSON]:
        """The events with which a stream ends, if its client wants the numbers of tokens."""
        return [self.event([], usage)]

    def text_of(self, token: int) -> str:
        """The text of one token. One that ends inside a character has a replacement character."""
        return self._tokenizer.decode([token], special=True)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one token, which may be a part of a character."""
        return self._tokenizer.core.token_bytes(token)


@dataclass(frozen=True)
class Exchange:
    """A request that has been understood, and how it is answered."""

    service: Service
    asked: Asked
    prompts: Sequence[Prompt]
    form: Form
    logprobs: int | None = None
    calls: int = 0
    """The most tool calls in an answer; 0: they are not looked for."""

    async def respond(self, request: Request) -> Response:
        """Return the answers, or the stream in which they will come."""
        address = request.client.host if request.client else ""
        if self.asked.stream:
            return _Stream(partial(self._events, address))
        return JSONResponse(await while_connected(request, self._whole(address)))

    async def _whole(self, address: str) -> JSON:
        async with self.service.replies(self.asked, self.prompts, self.logprobs, address) as replies:
            found: list[list[Piece]] = [[] for _ in replies]
            async for index, piece in self._pieces(replies):
                found[index].append(piece)
            choices = [self.form.choice(index, _joined(each)) for index, each in enumerate(found)]
            return self.form.whole(choices, self._usage(replies))

    async def _events(self, address: str) -> AsyncGenerator[JSON, None]:
        async with self.service.replies(self.asked, self.prompts, self.logprobs, address) as replies:
            begun = False
            async for index, piece in self._pieces(replies):
                if not begun:  # only now, so that an answer that fails at once gets another status
                    begun = True
                    for event in self.form.begins(len(replies)):
                        yield event
                for event in self.form.goes_on(index, piece):
                    yield event
            if self.asked.with_usage:
                for event in self.form.ends(self._usage(replies)):
                    yield event

    async def _pieces(self, replies: Sequence[Reply]) -> AsyncGenerator[tuple[int, Piece], None]:
        collectors = [CallCollector(self.calls) for _ in replies]
        async with aclosing(pieces(replies)) as found:
            async for index, piece in found:
                yield index, collectors[index].push(piece) if self.calls else piece

    def _usage(self, replies: Sequence[Reply]) -> JSON:
        """The numbers of tokens. A prompt with several answers counts once."""
        used = [reply.ticket.usage for reply in replies]
        prompts = used[:: self.asked.count]
        prompt, completion = sum(each.prompt_tokens for each in prompts), sum(each.completion_tokens for each in used)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in prompts)},
        }


class _Stream(Response):
    """Server-sent events. An error before the first one gets its own status; a later one is an event."""

    def __init__(self, events: Callable[[], AsyncGenerator[JSON, None]]) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await while_connected(Request(scope, receive), self._run(send))

    async def _run(self, send: Send) -> None:
        begun = False
        async with aclosing(self._events()) as events:
            try:
                async for event in events:
                    if not begun:
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                        begun = True
                    await send(_event(json.dumps(event, ensure_ascii=False), event.get("type")))
            except FeatherbackError as error:
                if not begun:
                    raise
                refused = error if isinstance(error, RefusedError) else RefusedError(str(error))
                await send(_event(json.dumps(refused.body)))
            await send({**_event("[DONE]"), "more_body": False})


def _event(data: str, name: str | None = None) -> JSON:
    named = f"event: {name}\n" if name else ""
    return {"type": "http.response.body", "body": f"{named}data: {data}\n\n".encode(), "more_body": True}


def _joined(several: Sequence[Piece]) -> Piece:
    return Piece(
        "".join(piece.text for piece in several),
        [token for piece in several for token in piece.tokens],
        several[-1].finish,
        several[-1].calls,
    )


def finite(logprob: float | None) -> float:
    """Return a log-probability that JSON can hold."""
    return _LEAST_LOGPROB if logprob is None else max(logprob, _LEAST_LOGPROB)
