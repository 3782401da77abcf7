"""A connection over HTTP/1.1. In a turn of the event loop, no client gets more than a bounded amount of work done."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from featherback.web.refusal import RefusedError

LEAST_READ, FIRST_READ, MOST_READ = 512, 2048, 8192
"""Bytes that are read and parsed in a turn: after many small parts, at first, and after few large ones. The smallest
part has about six bytes, so this bounds how many parts are parsed."""
_SMALL = 64
"""Bytes of a small part: a line of a header, a chunk, the start of a request."""
HEADER_BYTES, HEADER_LINES = 32_000, 100
"""The most bytes and lines in the header of a request, and in what follows the last chunk of its body."""
_QUEUED, _QUEUED_BYTES = 16, 16_384
"""Requests, and bytes of their bodies, that may arrive while an earlier one is answered."""
_FRAMING = 8
"""Bytes of chunk sizes and line ends for each byte of a body."""
_DROPPED_BYTES, _DROPPED_SECONDS = 64_000_000, 30.0
"""How much of a request, and how long, is read and dropped after the answer, so that the client can read it."""


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


class Connection(HttpToolsProtocol, asyncio.BufferedProtocol):
    """A connection whose client must send and read in time. After an answer that ends it, nothing is parsed."""

    def __init__(self, patience: Patience, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._patience = patience
        self._buffer = memoryview(bytearray(MOST_READ))
        self._size = FIRST_READ  # bytes of the next read
        self._parts = 0  # that were parsed in this turn
        self._begun = deque[Any]()  # requests whose answer is not complete; the first one is being answered
        self._keeps = True  # whether the newest request leaves the connection open
        self._framing = self._lines = 0  # bytes that are no body, and lines, of the newest request
        self._is_deaf = False  # whether what comes is dropped
        self._is_refused = False  # whether the connection was answered with an error before there was a request
        self._dropped = 0
        self._deadline: asyncio.TimerHandle | None = None  # for the header that has begun
        self._write_deadline: asyncio.TimerHandle | None = None
        self._end_deadline: asyncio.TimerHandle | None = None
        self._since = time.monotonic()  # when the client's turn began
        self._aborted = False

    # What the event loop calls.

    def connection_made(self, transport: Any) -> None:
        """Begin, or refuse the connection if there are too many."""
        super().connection_made(_Transport(transport, self._end))  # type: ignore[arg-type]
        self._set_deadline()
        others = [each for each in self.connections if isinstance(each, Connection) and not each._aborted]
        if len(others) > self._patience.connections:
            waiting = [each for each in others if each._is_waiting and each is not self]
            if waiting:
                min(waiting, key=lambda each: each._since)._abort()
            else:
                self._refuse(RefusedError("Too many connections. Try again later.", 503, retry_after=2, closes=True))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answers."""
        for timer in (self._deadline, self._write_deadline, self._end_deadline):
            _clear(timer)
        self._give_up()
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to put what is read next."""
        return self._buffer[: self._size]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what was read, once in a turn of the event loop."""
        self._parts = 0
        self.data_received(bytes(self._buffer[:nbytes]))
        self._size = LEAST_READ if self._parts * _SMALL > nbytes else min(2 * self._size, MOST_READ)

    def data_received(self, data: bytes) -> None:
        """Parse or drop bytes."""
        if self._is_deaf:
            self._dropped += len(data)
            if self._dropped > _DROPPED_BYTES:
                self._abort()
            return
        self._framing += len(data)
        super().data_received(data)
        if self._framing > HEADER_BYTES and not self._is_deaf:
            self.send_400_response("")
        if self.cycle is None or self.cycle.response_complete:
            self._set_deadline()
        else:
            _clear(self._deadline)
            self._deadline = None
            if not self.cycle.more_body:
                self._since = time.monotonic()

    def pause_writing(self) -> None:
        """Wait for a client that does not read, but not for ever."""
        super().pause_writing()
        self._write_deadline = self.loop.call_later(self._patience.write_seconds, self._abort)

    def resume_writing(self) -> None:
        """Go on, because the client has read something."""
        super().resume_writing()
        _clear(self._write_deadline)
        self._write_deadline = None

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._parts += 1
        self._framing = self._lines = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a line of a header, or of what follows the last chunk. Raises ValueError if there are too many."""
        self._parts += 1
        self._lines += 1
        if self._lines > HEADER_LINES:
            raise ValueError("too many lines")  # which ends the parser, and the client gets status 400
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer, or queue the request. Raises ValueError if too many are queued."""
        if len(self._begun) > _QUEUED:
            raise ValueError("too many requests")
        super().on_headers_complete()
        self._begun.append(self.cycle)
        self._framing = 0
        # An answer that is sent before the request is complete ends the connection.
        self._keeps, self.cycle.keep_alive = self.cycle.keep_alive, False
        self.flow.resume_reading()  # else it would not be seen that the client has left

    def on_body(self, body: bytes) -> None:
        """Add a part of a body. Raises ValueError if too much is queued."""
        self._parts += 1
        self._framing = max(0, self._framing - (1 + _FRAMING) * len(body))
        super().on_body(body)
        if self.pipeline and sum(len(cycle.body) for cycle, _ in self.pipeline) > _QUEUED_BYTES:
            raise ValueError("too many bytes")

    def on_message_complete(self) -> None:
        """Note that a request is complete."""
        super().on_message_complete()
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps

    # What uvicorn calls.

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        self._since = time.monotonic()
        self._begun.popleft()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, and end the connection. Complete requests that came before are answered first."""
        self._is_deaf = True
        if self.pipeline and self.cycle.more_body:
            self.pipeline.popleft()
            self._begun.pop()
        last = self._begun[-1] if self._begun else None
        if last is not None and not last.more_body:
            last.keep_alive = False
            self.flow.resume_reading()
        elif last is not None and last.response_started:
            self._abort()
        else:
            self._refuse(
                RefusedError(
                    f"The request is not valid HTTP/1.1, or its header has more than {HEADER_LINES} lines or "
                    f"{HEADER_BYTES:,} bytes.",
                    closes=True,
                )
            )

    def shutdown(self) -> None:
        """End the connection with the answer that is being written."""
        self._keeps = False
        if self._is_deaf and not self._begun:
            self._abort()
        super().shutdown()

    def _unsupported_upgrade_warning(self) -> None:
        """Answer a request for another protocol in this one, and end the connection, as the parser has ended."""
        self._is_deaf = True
        self._keeps = self.cycle.keep_alive = False

    # The end.

    @property
    def _is_waiting(self) -> bool:
        """Whether the client has the turn: it sends a request, or nothing, or does not read the end of an answer."""
        return not self._begun or self._begun[0].more_body

    def _refuse(self, error: RefusedError) -> None:
        """Answer with an error before there is a request, and end the connection."""
        self._give_up()
        response = error.response
        lines = [b"HTTP/1.1 %d Error" % error.status, *(b"%s: %s" % each for each in response.raw_headers)]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self._is_refused = True
        self.transport.close()

    def _give_up(self) -> None:
        """Tell the app that the client of the answers that are not complete has left."""
        self.pipeline.clear()
        for cycle in self._begun:
            cycle.disconnected = True
            cycle.message_event.set()
        self._begun.clear()

    def _end(self) -> None:
        """Close the connection once the answer is written. A client that is still sending gets the time to read it."""
        self._is_deaf = True
        _clear(self._end_deadline)
        self._end_deadline = self.loop.call_later(_DROPPED_SECONDS, self._abort)
        transport = self.transport.transport  # type: ignore[attr-defined]
        if self._is_refused or (self.cycle is not None and self.cycle.more_body):
            if not transport.is_closing():
                with suppress(OSError):  # the client has just left
                    transport.write_eof()
                transport.resume_reading()
        else:
            transport.close()

    def _abort(self) -> None:
        self._aborted = True
        self.transport.abort()

    def _set_deadline(self) -> None:
        """End the connection unless a header is complete in time. A deadline that is set already stays."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._patience.header_seconds, self._abort)


class _Transport:
    """A transport whose `close` calls a function."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], object]) -> None:
        self.transport, self._close, self._closed = transport, close, False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._close()

    def is_closing(self) -> bool:
        return self._closed or self.transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


def _clear(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
