"""A guarded app in its own process: `python -m tests.web.echo_server PATIENCE RULES`, both in JSON.

It prints its port. `/echo` returns the length of the body, `/much` a long answer, `/bug` fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from threading import Event, Thread

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from featherback.web.connection import Patience
from featherback.web.guard import Rules, guarded
from featherback.web.refusal import HANDLERS, RefusedError
from featherback.web.server import listen, serve

MUCH = 64_000_000


async def echo(request: Request) -> Response:
    return JSONResponse({"length": len(await request.body())})


async def much(request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(MUCH // 64_000):
            yield b"x" * 64_000

    return StreamingResponse(pieces())


async def bug(request: Request) -> Response:
    raise ValueError("a bug")


async def refused(request: Request) -> Response:
    raise RefusedError("No room.", 503, retry_after=7)


def app() -> Starlette:
    routes = [
        Route("/echo", echo, methods=["GET", "POST"]),
        Route("/much", much),
        Route("/bug", bug),
        Route("/refused", refused),
    ]
    return Starlette(routes=routes, exception_handlers=HANDLERS)


def echoing(failed: Callable[[BaseException], object] = print) -> int:
    """Start an impatient echo server in a thread of this process, and return its port. `failed` gets its bugs."""
    started, listener = Event(), listen("127.0.0.1", 0)
    rules, patience = Rules(body_seconds=0.2, failed=failed), Patience(header_seconds=0.2, idle_seconds=1)
    serving = (guarded(app(), rules), listener, started.set, patience)
    Thread(target=serve, args=serving, daemon=True).start()
    started.wait()
    return int(listener.getsockname()[1])


def _say(text: object) -> None:
    print(text, flush=True)


def main() -> None:
    patience, rules = (json.loads(word) for word in sys.argv[1:])
    listener = listen("127.0.0.1", 0)
    settings = replace(Rules(**rules), log=_say, failed=lambda error: _say(f"bug: {error}"))
    serve(
        guarded(app(), settings),
        listener,
        on_start=lambda: _say(listener.getsockname()[1]),
        patience=Patience(**patience),
    )
    _say("ended")


if __name__ == "__main__":
    main()
