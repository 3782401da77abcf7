"""How answers are written: as one JSON object, or as a stream of server-sent events."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.infer.batching import Emitted
from featherback.version import __version__
from featherback.web.openai.asked import Asked
from featherback.web.openai.calls import CallCollector
from featherback.web.openai.replies import Piece, Reply, pieces
from featherback.web.openai.service import Prompt, Service
from featherback.web.openai.written import Written, json_blocks, send_json
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

    def whole(self, choices: Iterator[JSON], usage: JSON) -> JSON:
        """The answers as one object."""
        return {**self._about, "object": self.kind, "choices": choices, "usage": usage}

    def event(self, choices: Sequence[JSON], usage: JSON | None = None) -> JSON:
        """A part of a stream."""
        return {**self._about, "object": self.part, "choices": iter(choices), "usage": usage}

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
    is_call: bool = False
    """The prompt ends with the beginning of a call, so each answer is a call."""

    async def respond(self, request: Request) -> Response:
        """Return the answers, or the stream in which they will come."""
        address = request.client.host if request.client else ""
        return _stream(partial(self._events, address)) if self.asked.stream else Written(partial(self._whole, address))

    async def _whole(self, address: str, send: Send) -> None:
        async with self.service.replies(self.asked, self.prompts, self.logprobs, address) as replies:
            found = [_Collected() for _ in replies]
            async for index, piece in self._pieces(replies):
                found[index].add(piece, self.logprobs is not None)
            choices = (self.form.choice(index, each.whole) for index, each in enumerate(found))
            await send_json(send, self.form.whole(choices, self._usage(replies)))

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
        collectors = [CallCollector(self.calls, self.is_call) for _ in replies]
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


def _stream(events: Callable[[], AsyncGenerator[JSON, None]]) -> Response:
    """Return server-sent events. An error before the first one gets its own status; a later one is an event."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]

    async def write(send: Send) -> None:
        begun = False
        async with aclosing(events()) as found:
            try:
                async for event in found:
                    if not begun:
                        await send({"type": "http.response.start", "status": 200, "headers": headers})
                        begun = True
                    await _send(send, event, event.get("type"))
            except FeatherbackError as error:
                if not begun:
                    raise
                refused = error if isinstance(error, RefusedError) else RefusedError(str(error))
                await _send(send, refused.body)
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    return Written(write)


async def _send(send: Send, event: JSON, name: str | None = None) -> None:
    before = f"event: {name}\ndata: " if name else "data: "
    for block in json_blocks(event, before, "\n\n"):
        await send({"type": "http.response.body", "body": block, "more_body": True})


class _Collected:
    """The pieces of an answer. Its text takes a few bytes a token; tokens are kept only if they are written."""

    def __init__(self) -> None:
        self._text, self._tokens, self._last = StringIO(), list[Emitted](), Piece("")

    def add(self, piece: Piece, with_tokens: bool) -> None:
        """Add the next piece."""
        self._text.write(piece.text)
        if with_tokens:
            self._tokens += piece.tokens
        self._last = piece

    @property
    def whole(self) -> Piece:
        """The answer as one piece."""
        return Piece(self._text.getvalue(), self._tokens, self._last.finish, self._last.calls)


def finite(logprob: float | None) -> float:
    """Return a log-probability that JSON can hold."""
    return _LEAST_LOGPROB if logprob is None else max(logprob, _LEAST_LOGPROB)
