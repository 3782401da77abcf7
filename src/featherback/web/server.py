"""Listen on a port and serve an app until a signal ends it. A client that waits or dawdles holds nobody up."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from featherback.core.naming import argument
from featherback.engine.host.interrupt import ended_by_signals
from featherback.errors import FeatherbackError
from featherback.web.refusal import RefusedError

_BACKLOG = 128
_HEADER_BYTES = 32_000
_ENDING_SECONDS = 3


@dataclass(frozen=True)
class Patience:
    """How long and how many clients are waited for."""

    connections: int = 256
    """The most open connections. Beyond it, the connection that has been waiting for its client longest is closed."""
    header_seconds: float = 10.0
    """Time for the header of a request, from the opening of the connection or from its first byte."""
    idle_seconds: int = 30
    """Time until the next request on an open connection."""
    write_seconds: float = 30.0
    """Time in which a client must read something of an answer that fills the buffers."""


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
    patience: Patience = Patience(),
) -> None:
    """Serve `app` until SIGINT, SIGTERM or SIGHUP. Answers that are being written then end within three seconds.

    `on_start` is called when connections are accepted.
    """
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=partial(_Connection, patience),  # type: ignore[arg-type]
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
        h11_max_incomplete_event_size=_HEADER_BYTES,
    )
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve([listener]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        if server.started:
            on_start()
        await serving

    with listener, suppress(KeyboardInterrupt), ended_by_signals():  # uvicorn raises its signal again at the end
        asyncio.run(run())


class _Connection(H11Protocol):
    """A connection whose client must send and read in time."""

    def __init__(self, patience: Patience, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._patience = patience
        self._deadline: asyncio.TimerHandle | None = None  # for the header that has begun
        self._write_deadline: asyncio.TimerHandle | None = None
        self._since = time.monotonic()  # when the client's turn began
        self._aborted = False

    @property
    def _is_waiting(self) -> bool:
        """Whether the client has the turn: it sends a request, or nothing, or does not read the end of an answer."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._set_deadline()
        others = [each for each in self.connections if isinstance(each, _Connection) and not each._aborted]
        if len(others) > self._patience.connections:
            waiting = [each for each in others if each._is_waiting and each is not self]
            if waiting:
                min(waiting, key=lambda each: each._since)._abort()
            else:
                self._refuse(RefusedError("Too many connections. Try again later.", 503, retry_after=2, closes=True))

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear(self._deadline)
        self._clear(self._write_deadline)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The rest of a body that was too long is read and dropped for a while, so that the client can read the answer.
        if self.cycle is None or self.cycle.response_complete:
            self._set_deadline()
        else:
            self._clear(self._deadline)
            self._deadline = None
            if not self.cycle.more_body:
                self._since = time.monotonic()

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or end the connection if an answer has begun."""
        if self.conn.our_state is h11.IDLE:
            self._refuse(RefusedError("The request is not valid HTTP/1.1.", closes=True))
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(self._patience.write_seconds, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._clear(self._write_deadline)
        self._write_deadline = None

    def _refuse(self, error: RefusedError) -> None:
        """Answer with an error before there is a request, and end the connection."""
        response = error.response
        for event in (
            h11.Response(status_code=error.status, headers=response.raw_headers, reason=b"Error"),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _abort(self) -> None:
        self._aborted = True
        self.transport.abort()

    def _set_deadline(self) -> None:
        """End the connection unless a header is complete in time. A deadline that is set already stays."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._patience.header_seconds, self._abort)

    @staticmethod
    def _clear(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
