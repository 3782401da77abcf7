"""Answers as JSON that is written in parts, so that no long answer is in memory as a whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from itertools import chain, repeat
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from featherback.web.openai.service import while_connected

_BLOCK = 1 << 14
"""Bytes that are written at a time."""


class Written(Response):
    """An answer that a coroutine writes with the `send` that it is given."""

    def __init__(self, write: Callable[[Send], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the answer, unless the client leaves."""
        with suppress(ClientDisconnect):
            await while_connected(Request(scope, receive), self._write(send))


async def send_json(send: Send, value: Any) -> None:
    """Answer with JSON. The items of iterators in `value` are made when they are written."""
    blocks = json_blocks(value)
    first, second = next(blocks), next(blocks, None)
    headers = [(b"content-type", b"application/json")]
    if second is None:
        headers.append((b"content-length", b"%d" % len(first)))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for block in chain((first,), () if second is None else (second,), blocks):
        await send({"type": "http.response.body", "body": block, "more_body": True})
        await asyncio.sleep(0)  # other requests have their turn
    await send({"type": "http.response.body", "body": b""})


def _texts(value: Any) -> Iterator[str]:
    """Yield parts of JSON."""
    if isinstance(value, dict):
        for mark, (name, each) in zip(chain("{", repeat(",")), value.items()):
            yield f"{mark}{json.dumps(name, ensure_ascii=False)}:"
            yield from _texts(each)
        yield "}" if value else "{}"
    elif isinstance(value, Iterator):
        mark = "["
        for each in value:
            yield mark
            yield from _texts(each)
            mark = ","
        yield "]" if mark == "," else "[]"
    else:
        yield json.dumps(value, ensure_ascii=False)


def json_blocks(value: Any, before: str = "", after: str = "") -> Iterator[bytes]:
    """Yield JSON, with a text before and after it, in parts of about 16 kB, at least one."""
    held = bytearray()
    for text in chain((before,), _texts(value), (after,)):
        held += text.encode()
        if len(held) >= _BLOCK:
            yield bytes(held)
            held.clear()
    yield bytes(held)
