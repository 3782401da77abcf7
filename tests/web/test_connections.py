"""Connections: clients that are slow, many or malformed, against a server in its own process."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from featherback.errors import FeatherbackError
from featherback.web.connection import HEADER_LINES, Connection
from featherback.web.server import address_of, listen, serve
from tests.web import echo_server

PATIENCE = 60
GET = b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"


class Server:
    """A running echo server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process, self.port = process, int(process.stdout.readline())

    def connect(self, sent: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        client.sendall(sent)
        return client

    def ask(self, sent: bytes) -> bytes:
        """Everything the server answers to these bytes before it closes the connection."""
        with closing(self.connect(sent)) as client:
            return read_all(client)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err


def read_all(client: socket.socket) -> bytes:
    found = b""
    while part := _part(client):
        found += part
    return found


def read_until(client: socket.socket, end: bytes) -> bytes:
    found = b""
    while not found.endswith(end):
        found += client.recv(1 << 16)
    return found


def _part(client: socket.socket) -> bytes:
    try:
        return client.recv(1 << 20)
    except ConnectionResetError:
        return b""


@contextmanager
def running(rules: dict[str, object] | None = None, **patience: float) -> Iterator[Server]:
    command = [sys.executable, "-m", "tests.web.echo_server", json.dumps(patience), json.dumps(rules or {})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(header_seconds=0.4, idle_seconds=1, write_seconds=0.5, connections=16) as started:
        yield started


def test_a_header_that_does_not_end_is_not_waited_for(server: Server) -> None:
    with closing(server.connect(b"GET /echo HTTP/1.1\r\nHost: ")) as client:
        assert _trickle(client) == b""
    with closing(server.connect(GET)) as client:  # the next request on the same connection
        assert read_until(client, b'{"length":0}').startswith(b"HTTP/1.1 200")
        client.sendall(GET[:-4])
        assert _trickle(client) == b""
    with closing(server.connect()) as client:  # nothing at all
        assert read_all(client) == b""


def _trickle(client: socket.socket) -> bytes:
    """What the server says to a client that sends a byte of a header at a time."""
    client.settimeout(0.05)
    for _ in range(1000):
        try:
            client.sendall(b"a")
            return client.recv(100)
        except TimeoutError:
            continue
        except OSError:
            return b""
    raise AssertionError("the server waits for ever")


def test_an_answer_that_is_not_read_is_given_up(server: Server) -> None:
    for seconds in (1.5, 6, 24):  # on a busy machine, the server notices late
        with closing(server.connect(b"GET /much HTTP/1.1\r\nHost: localhost\r\n\r\n")) as client:
            time.sleep(seconds)
            if len(read_all(client)) < echo_server.MUCH:
                return
    raise AssertionError("the server waits for ever")


def test_a_long_answer_that_is_read_arrives_whole() -> None:
    with running() as server:
        answer = server.ask(b"GET /much HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert len(answer) > echo_server.MUCH


def test_idle_clients_do_not_keep_others_out(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(closing(server.connect()))
            stack.enter_context(
                closing(server.connect(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"))
            )
        with closing(server.connect(GET)) as client:
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")


NOT_HTTP = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    b"\0" * 100 + b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    b"GET /" + b"a" * 50_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    CHUNKED + b"\r\n1;" + b"a" * 90_000 + b"\r\na\r\n0\r\n\r\n",
    CHUNKED + b"\r\n0\r\na: " + b"b" * 90_000 + b"\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)


@pytest.mark.parametrize("sent", NOT_HTTP, ids=lambda sent: sent[:12].hex())
def test_what_is_not_http_is_answered_with_400(server: Server, sent: bytes) -> None:
    head, _, body = server.ask(sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 4")
    assert json.loads(body)["error"]["message"]
    with closing(server.connect(GET)) as client:
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_a_chunk_that_is_broken_ends_the_request(server: Server) -> None:
    start = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert not server.ask(start + b"zz\r\n").startswith(b"HTTP/1.1 200")
    assert server.ask(start[:-2] + b"Connection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n").endswith(b'{"length":3}')


def test_a_websocket_is_not_opened(server: Server) -> None:
    upgrade = (
        b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
    )
    assert server.ask(GET[:-2] + upgrade + b"\r\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_in_the_middle_of_answers(number: int) -> None:
    with running() as server, closing(server.connect(b"GET /much HTTP/1.1\r\nHost: localhost\r\n\r\n")) as client:
        client.recv(10)
        status, out, err = server.end(number)
        assert (status, err) == (0, "")
        assert out.endswith("ended\n")


def test_a_bug_is_logged_once() -> None:
    with running() as server:
        answer = server.ask(b"GET /bug HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 500")
        _, out, err = server.end()
        assert err == ""
        assert out.splitlines()[0] == "bug: a bug"
        assert out.splitlines()[1].startswith("GET /bug 500 ")


def test_ports_that_cannot_be_used(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert address_of(taken) == f"http://127.0.0.1:{port}"
        with pytest.raises(FeatherbackError, match=f"Another program uses port {port}.*--port {port + 1}"):
            listen("127.0.0.1", port)
    with pytest.raises(FeatherbackError, match=r"no address 192\.0\.2\.1"):
        listen("192.0.2.1", 0)
    with pytest.raises(FeatherbackError, match=r"--host no-such-name\.invalid: the name is unknown"):
        listen("no-such-name.invalid", 0)
    with listen("0.0.0.0", 0) as every:
        assert address_of(every).startswith("http://127.0.0.1:")


def test_a_body_without_an_end_is_not_read_for_ever() -> None:
    start = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    with running() as server, closing(server.connect(start)) as client, pytest.raises(OSError):
        client.sendall(chunk * 400)


def test_a_client_that_still_sends_can_read_why_it_is_rejected(server: Server) -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6000000\r\n\r\n"
    with closing(server.connect(head)) as client:
        for _ in range(6):
            client.sendall(b"x" * 1_000_000)
            time.sleep(0.01)
        assert client.recv(100).startswith(b"HTTP/1.1 413")


def test_a_client_that_leaves_while_it_is_rejected_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It resets the connection between the answer and its end."""
    answered, left, ended, errors = Event(), Event(), Event(), list[BaseException]()
    end = Connection._end

    def late(connection: Connection) -> None:
        answered.set()
        assert left.wait(PATIENCE)
        try:
            end(connection)
        except OSError as error:
            errors.append(error)
            raise
        finally:
            ended.set()

    monkeypatch.setattr(Connection, "_end", late)
    server = ("127.0.0.1", echo_server.echoing(errors.append))
    with socket.create_connection(server, PATIENCE) as client:
        client.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
        assert answered.wait(PATIENCE)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    left.set()
    assert ended.wait(PATIENCE)
    with socket.create_connection(server, PATIENCE) as client:  # a turn later
        client.sendall(GET)
        read_until(client, b"}")
    assert not errors
    assert not caplog.records


MOST_EVENTS = 1500
"""The most parts of requests, lines and chunks included, that are parsed in a turn for one connection."""


class Counted:
    """What the parser calls back between two turns of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: list[int] = []
        self.queued = 0
        read = Connection.buffer_updated

        def turn(connection: Connection, size: int) -> None:
            self.turns.append(0)
            read(connection, size)
            self.queued = max(self.queued, len(connection.pipeline))

        monkeypatch.setattr(Connection, "buffer_updated", turn)
        for name in ("on_body", "on_header", "on_message_begin"):
            monkeypatch.setattr(Connection, name, self._counting(getattr(Connection, name)))

    def _counting(self, call: Callable[..., None]) -> Callable[..., None]:
        def counting(*arguments: Any) -> None:
            self.turns[-1] += 1
            call(*arguments)

        return counting


def converse(sent: bytes) -> bytes:
    """What a server in this process answers until it closes the connection."""
    with socket.create_connection(("127.0.0.1", echo_server.echoing()), PATIENCE) as client:

        def send() -> None:
            with suppress(OSError):
                client.sendall(sent)

        Thread(target=send, daemon=True).start()
        return read_all(client)


FLOODS = {
    "one-byte chunks": CHUNKED + b"\r\n" + b"1\r\n \r\n" * 100_000 + b"0\r\n\r\n",
    "header lines": GET[:-2] + b"a:\r\n" * 50_000 + b"\r\n",
    "lines after the last chunk": CHUNKED + b"\r\n0\r\n" + b"a:\r\n" * 50_000 + b"\r\n",
    "pipelined requests": GET * 5000,
    "broken in the middle": CHUNKED + b"\r\n" + b"1\r\n \r\n" * 50_000 + b"x\r\n" * 50_000,
}


@pytest.mark.parametrize("flood", FLOODS)
def test_the_work_of_a_turn_is_bounded(monkeypatch: pytest.MonkeyPatch, flood: str) -> None:
    counted = Counted(monkeypatch)
    converse(FLOODS[flood])
    assert 0 < max(counted.turns) <= MOST_EVENTS
    assert counted.queued <= MOST_EVENTS


def test_more_lines_than_a_header_may_have_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    assert converse(FLOODS["header lines"]).startswith(b"HTTP/1.1 400")
    assert sum(counted.turns) < 2 * HEADER_LINES


def test_nothing_is_parsed_after_an_answer_that_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    answer = converse(FLOODS["one-byte chunks"].replace(b"/echo", b"/none", 1))
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"connection: close" in answer
    assert sum(counted.turns) <= 3 * MOST_EVENTS


def test_a_client_that_leaves_ends_the_first_of_several_requests() -> None:
    left = Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    listener, started = listen("127.0.0.1", 0), Event()
    Thread(target=serve, args=(app, listener, started.set), daemon=True).start()
    started.wait()
    with socket.create_connection(listener.getsockname()[:2], PATIENCE) as client:
        client.sendall(GET)
        time.sleep(0.1)
        client.sendall(GET + GET)
        time.sleep(0.1)
    assert left.wait(PATIENCE)
