"""What the handlers of the OpenAI API share: one model, its adapters, and the batcher that answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from featherback.core.system import branches
from featherback.data.templates.chat import ChatTemplate
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.infer import batching
from featherback.infer.batching import Batcher, Pooling, Ticket
from featherback.infer.grammar import Constrained, Grammars, Schema
from featherback.models.adapter import Adapter
from featherback.web.openai.asked import Asked, Defaults
from featherback.web.openai.replies import Reply
from featherback.web.openai.shelf import Loaded, Shelf
from featherback.web.openai.turns import Turns
from featherback.web.refusal import RefusedError

T = TypeVar("T")
_LONG = 1 << 15
"""Characters of a text that is long: it is encoded in a thread of its own, so that short ones do not wait for it."""
_LIKELY_BYTES = 128
"""Bytes of a token's log-probability, and of that of each alternative, until they are sent."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, and the most tokens of its answer."""

    ids: Sequence[int]
    max_tokens: int


class Service:
    """Answers requests about one model. `template`: None if the model has no chat template."""

    def __init__(
        self,
        batcher: Batcher,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        shelf: Shelf,
        defaults: Defaults,
        pooling: Pooling = "mean",
        open_grammars: Callable[[Tokenizer], Grammars] = Grammars,
        schemas: int = batching.SLOTS,
        control_tokens: bool = False,
    ) -> None:
        """`open_grammars`: called once, before the first answer that must be JSON. `schemas`: how many requests for
        JSON are answered at the same time. `control_tokens`: their names in prompts of completions are tokens.
        """
        self.batcher, self.tokenizer, self.template, self.shelf = batcher, tokenizer, template, shelf
        self.defaults, self.pooling = defaults, pooling
        self.control_tokens = control_tokens
        self.created = int(time.time())
        self._answering: set[Ticket] = set()
        self._schemas = Turns(schemas)
        self._open_grammars = open_grammars
        self._grammars: Grammars | None = None
        self._done = 0  # tokens of answers that have ended
        # One thread for templates, token ids and adapters, because the process of templates answers in order, and one
        # for the token ids of long texts. A pool would have a stack and a heap for each of its threads.
        self._working = ThreadPoolExecutor(1, "featherback-requests")
        self._encoding = ThreadPoolExecutor(1, "featherback-long-texts")
        self._most_characters = batcher.capacity * tokenizer.longest

    async def work(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the thread for short work."""
        return await asyncio.get_running_loop().run_in_executor(self._working, function, *arguments)

    async def encode(self, characters: int, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that encodes so many characters, in the thread for short work or in that for long texts."""
        thread = self._encoding if characters > _LONG else self._working
        return await asyncio.get_running_loop().run_in_executor(thread, function, *arguments)

    def check_length(self, characters: int, param: str) -> None:
        """Raise RefusedError for a text that cannot fit in the context, however it is encoded."""
        if characters > self._most_characters:
            raise RefusedError(
                f"The prompt has {characters:,} characters, but the context of this server holds "
                f"{self.batcher.capacity} tokens, which are at most {self._most_characters:,} characters.",
                param=param,
                code="context_length_exceeded",
            )

    @asynccontextmanager
    async def replies(
        self, asked: Asked, prompts: Sequence[Prompt], logprobs: int | None, address: str
    ) -> AsyncIterator[list[Reply]]:
        """Submit `asked.count` requests for each prompt. When the context ends, those that are left are cancelled.

        `address`: the client's.
        """
        tickets: list[Ticket] = []
        count = asked.count * len(prompts)
        longest = asked.count * sum(prompt.max_tokens for prompt in prompts)
        holds = 0 if logprobs is None else _LIKELY_BYTES * (1 + logprobs) * longest
        after = list[Callable[[], object]]()
        async with self.adapter(asked.model, tickets, after) as adapter:
            schema = None
            if asked.schema is not None:
                schema = await self._compiled(asked, count, asked.client or address, after)
            for prompt in prompts:
                for number in range(asked.count):
                    sampler = asked.sampler(number, prompt.ids)
                    request = batching.Request(
                        prompt=prompt.ids,
                        sampler=sampler if schema is None else Constrained(sampler, schema.answer(len(tickets))),
                        max_tokens=prompt.max_tokens,
                        end_ids=self.tokenizer.end_ids,
                        adapter=adapter,
                        client=asked.client,
                        logprobs=logprobs,
                        holds=0 if tickets else holds,
                    )
                    tickets.append(self.batcher.submit(request))
                    self._answering.add(tickets[-1])
            yield [Reply(ticket, self.tokenizer, asked.stops) for ticket in tickets]

    async def _compiled(self, asked: Asked, count: int, client: str, after: list[Callable[[], object]]) -> Schema:
        """Compile the schema for `count` answers, and add to `after` what ends its process. Raises RefusedError.

        A client's schemas are compiled one after the other.
        """

        def start() -> Schema:
            if self._grammars is None:
                self._grammars = self._open_grammars(self.tokenizer)
            return self._grammars.start(asked.schema or {}, count)

        async with self._schemas.turn(client) as free:
            after.append(free)
            try:
                compiling = await self.work(start)
                after.insert(0, compiling.close)  # before its place is free
                await branches.readable(compiling.fileno())
                while not compiling.read():
                    await branches.readable(compiling.fileno())
            except FeatherbackError as error:
                field = asked.schema_field
                raise RefusedError(f'"{field}" is not supported: {error}', param=field) from None
            return compiling

    @asynccontextmanager
    async def adapter(
        self, model: str, tickets: Sequence[Ticket] = (), after: Sequence[Callable[[], object]] = ()
    ) -> AsyncIterator[Adapter | None]:
        """Keep the adapter of a model's name open within the context, and until the `tickets`, cancelled, are done.

        Then the functions of `after` are called, in some thread.
        """
        taking = self._working.submit(self.shelf.take, model)
        try:
            loaded = await asyncio.wrap_future(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_release)
            raise
        try:
            yield None if loaded is None else loaded.adapter
        finally:
            for ticket in tickets:
                ticket.cancel()
                ticket.release()
                self._answering.discard(ticket)
                self._done += ticket.usage.completion_tokens
            ends = [*after] if loaded is None else [*after, loaded.release]
            _when_done(tickets, Once(lambda: [end() for end in ends]))

    def prompt(self, ids: Sequence[int], wanted: int | None, param: str) -> Prompt:
        """Return a prompt whose answer has `wanted` tokens, or as many as the context holds.

        Raises RefusedError if the prompt does not fit.
        """
        room = self.batcher.capacity - len(ids)
        if not ids:
            raise RefusedError("The prompt is empty.", param=param)
        if room < 1:
            raise RefusedError(
                f"The prompt has {len(ids)} tokens, but the context of this server holds {self.batcher.capacity}, and "
                "an answer needs at least one.",
                param=param,
                code="context_length_exceeded",
            )
        return Prompt(ids, room if wanted is None else min(room, wanted))

    @property
    def activity(self) -> tuple[int, int]:
        """The number of answers that are being written or wait, and the number of tokens written since the start."""
        return len(self._answering), self._done + sum(each.usage.completion_tokens for each in self._answering)

    def close(self) -> None:
        """End the threads and close the adapters."""
        self._working.shutdown(cancel_futures=True)
        self._encoding.shutdown(cancel_futures=True)
        if self._grammars is not None:
            self._grammars.close()
        self.shelf.close()


def _release(taking: Future[Loaded | None]) -> None:
    """Release an adapter for which nobody waits any more."""
    if not taking.cancelled() and taking.exception() is None and (loaded := taking.result()) is not None:
        loaded.release()


class Once:
    """Calls a function the first time that it is called, in whatever thread."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._calls = [call]

    def __call__(self) -> None:
        with suppress(IndexError):
            self._calls.pop()()


def _when_done(tickets: Sequence[Ticket], call: Once) -> None:
    """Call a function when all tickets are done, possibly in the batcher's thread."""
    left = [ticket for ticket in tickets if not ticket.done]
    if not left:
        call()
        return
    left[0].listen(lambda: _when_done(left, call) if left[0].done else None)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`. If the client leaves before it has ended, it is cancelled and ClientDisconnect is raised."""
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, left):
            each.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


async def _left(request: Request) -> None:
    """Wait until the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
