"""Listen on a port and serve an app until a signal ends it. A client that waits or dawdles holds nobody up."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from featherback.core.naming import argument
from featherback.engine.host.interrupt import ended_by_signals
from featherback.errors import FeatherbackError
from featherback.web.connection import Connection, Patience

_BACKLOG = 128
_ENDING_SECONDS = 3
_SWITCH_SECONDS = 0.0005
"""How long another thread may compute in Python while the event loop waits, which it does after each system call."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `host`, a name or an address. Raises FeatherbackError if that is impossible."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise FeatherbackError(
            f"{argument('host', host)}: the name is unknown ({error.strerror}). Use an address of this machine, such "
            "as 127.0.0.1."
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        remedy = {
            errno.EADDRINUSE: f"Another program uses port {port}. Choose another one: {argument('port', port + 1)}.",
            errno.EACCES: f"Port {port} needs the rights of root. Choose one above 1023: {argument('port', 8000)}.",
            errno.EADDRNOTAVAIL: f"This machine has no address {host}. Use {argument('host', '127.0.0.1')}.",
        }.get(error.errno or 0, f"Cannot listen on {host}, port {port}: {error.strerror}.")
        raise FeatherbackError(remedy) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the address to open in a browser: http://127.0.0.1:8000."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def serve(
    app: ASGIApp,
    listener: socket.socket,
    on_start: Callable[[], object] = lambda: None,
    patience: Patience = Patience(),  # noqa: B008 - it cannot change
) -> None:
    """Serve `app` until SIGINT, SIGTERM or SIGHUP. Answers that are being written then end within three seconds.

    `on_start` is called when connections are accepted.
    """
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=partial(Connection, patience),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=100,  # the guard reports what there is to report, without queries and tracebacks
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=patience.idle_seconds,
        timeout_graceful_shutdown=_ENDING_SECONDS,
    )
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve([listener]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        if server.started:
            on_start()
        await serving

    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        with listener, suppress(KeyboardInterrupt), ended_by_signals():  # uvicorn raises its signal again at the end
            asyncio.run(run())
    finally:
        sys.setswitchinterval(before)
