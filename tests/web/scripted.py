"""The API over a batcher that answers with a script instead of a model's text, in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np

from featherback.data.templates.chat import ChatTemplate
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.infer.batching import Emitted, Request, Ticket
from featherback.infer.sampler import Sampler
from featherback.infer.tickets import HiddenStates
from featherback.models import load
from featherback.web.openai.app import application
from featherback.web.openai.asked import Defaults
from featherback.web.openai.service import Service
from featherback.web.openai.shelf import Shelf

CAPACITY = 300
LONG = 4000  # for prompts with tools


class Scripted:
    """A batcher that answers each request with the next of `texts`, byte by byte."""

    def __init__(self, model: Any, texts: Sequence[str | Exception]) -> None:
        self.model, self.capacity, self.texts = model, CAPACITY, [*texts]
        self.requests: list[Request] = []
        self.tickets: list[Ticket] = []
        self.ends: bool = True

    def submit(self, request: Request) -> Ticket:
        self.requests.append(request)
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        if isinstance(text, Exception):
            raise text
        ticket = Ticket(request)
        self.tickets.append(ticket)
        tokens = text.encode()[: request.max_tokens]
        for token in tokens:
            top = [(token, -0.5), (0, -1e9)][: request.logprobs or 0]
            ticket.emit(Emitted(token, None if request.logprobs is None else -0.5, top))
        if self.ends:
            ticket.finish("length" if len(tokens) == request.max_tokens else "stop")
        return ticket

    def embed(self, tokens: Sequence[int], adapter: Any, pooling: Any, holds: int = 0) -> Any:
        ticket = HiddenStates(Request(tokens, Sampler(), 0, holds=holds), pooling)
        states = np.zeros((len(tokens), self.model.config.hidden_size), np.float32)
        states[:, :3] = [(each, 1, 2) for each in tokens]
        ticket.add(states)
        ticket.finish("stop")
        return ticket

    def close(self) -> None:
        pass


@contextmanager
def scripted(
    model: Path,
    *texts: str | Exception,
    chat_template: str | None = None,
    pooling: Any = "mean",
    folders: Sequence[Path] = (),
) -> Iterator[SimpleNamespace]:
    """Yield `post(path, body) -> httpx.Response`, `stream(path, body) -> events` and the `batcher`."""
    opened = load(model)
    tokenizer = load_tokenizer(model)
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    template = ChatTemplate(tokenizer) if tokenizer.is_chat else None
    batcher: Any = Scripted(opened, texts)
    batcher.capacity = CAPACITY if chat_template is None else LONG
    service = Service(batcher, tokenizer, template, Shelf(opened, "tiny", folders), Defaults(0.0, 1.0, 0), pooling)
    app = application(service)

    def post(path: str, body: Any, raises: bool = True) -> httpx.Response:
        async def exchange() -> httpx.Response:
            transport = httpx.ASGITransport(app, raise_app_exceptions=raises)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                content = body if isinstance(body, bytes) else None
                return await client.post(path, content=content, json=None if content is not None else body)

        return asyncio.run(exchange())

    def leave(path: str, body: Any, when: Callable[[], bool] = lambda: len(batcher.tickets) > 1) -> list[Any]:
        """Send a request and close the connection once two tickets exist, or `when`. Returns what the app sent."""
        sent: list[Any] = []
        told = False

        async def receive() -> Any:
            nonlocal told
            if not told:
                told = True
                return {"type": "http.request", "body": json.dumps(body).encode()}
            while not when():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
        asyncio.run(app({**scope, "headers": [(b"host", b"localhost")]}, receive, send))
        return sent

    try:
        yield SimpleNamespace(
            post=post, leave=leave, batcher=batcher, tokenizer=tokenizer, template=template, service=service
        )
    finally:
        service.close()


Post = Callable[[str, Any], httpx.Response]
