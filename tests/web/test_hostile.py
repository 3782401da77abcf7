"""Malformed requests against a real server: it answers them with a reason, goes on, and holds no more memory."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest

from featherback.core.sizes import MB
from tests.fuzz.mutate import damaged, reworded
from tests.web.conftest import Files
from tests.web.serving import PATIENCE, Running, serving

GROWTH = 4 * MB
"""Memory that one server may hold more than before the last quarter of the requests: the first fill its caches."""
SENDERS = 8
HEAD = b"POST /v1/%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
SAID = [{"role": "user", "content": "Hello"}]
Bodies = Sequence[tuple[str, dict[str, Any]]]
BODIES: Bodies = [
    ("chat/completions", {"model": "notes", "messages": SAID, "max_tokens": 3, "stream": True, "stop": ["a"], "n": 2}),
    ("completions", {"prompt": ["a", "b"], "max_tokens": 2, "logprobs": 2, "seed": 5, "temperature": 0.5}),
    ("embeddings", {"input": ["a", [1, 2]], "encoding_format": "base64", "model": "tone"}),
    ("adapters", {"name": "x", "path": "../x"}),
]


def requests(seed: int, count: int, head: bytes = HEAD, bodies: Bodies = BODIES) -> list[bytes]:
    """Damaged requests: half of them in their JSON, half anywhere."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        path, body = bodies[number % len(bodies)]
        data = json.dumps(body).encode()
        if number % 2:
            data = reworded(rng, data, len(data))
        request = head % (path.encode(), len(data)) + data
        found.append(request if number % 2 else (reworded if number % 4 else damaged)(rng, request, len(request)))
    return found


def send(port: int, sent: bytes) -> str:
    """The status of the answer; "none" if the connection ended without one."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client, suppress(OSError):
        client.settimeout(1)  # it waits for a body that is shorter than announced
        client.sendall(sent)
        while part := client.recv(1 << 16):
            answer += part
    return answer[9:12].decode() or "none"


@pytest.mark.parametrize(
    "count", [160, pytest.param(4000, marks=pytest.mark.full("four thousand requests; 160 stand for them"))]
)
def test_malformed_requests(files: Files, count: int) -> None:
    options = ("--adapter", files.notes, "--adapter", files.tone, "--context", 200)
    with serving(files.model, *options) as server, ThreadPoolExecutor(SENDERS) as pool:
        statuses: Counter[str] = Counter()
        held = []
        for quarter in range(4):
            statuses.update(pool.map(lambda sent: send(server.port, sent), requests(quarter, count // 4)))
            held.append(server.memory())
        assert statuses["200"] > count // 40
        assert statuses["400"] > count // 4
        assert not {status for status in statuses if status.startswith("5")}, statuses
        assert held[-1] - held[-2] < GROWTH
        assert server.ask("/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
        assert "bug" not in server.errors
        assert "Traceback" not in server.errors


def test_a_planted_bug_would_be_seen(files: Files) -> None:
    """The statuses that the test above counts are those of the server."""
    with serving(files.model) as server:
        data = b'{"prompt": "a", "max_tokens": 2}'
        assert send(server.port, HEAD % (b"completions", len(data)) + data) == "200"
        assert send(server.port, HEAD % (b"completions", len(data) - 3) + data) == "400"
        assert send(server.port, HEAD % (b"nothing", len(data)) + data) == "404"
        assert send(server.port, b"\0\0\r\n\r\n") == "400"


def test_slow_clients_do_not_hold_others(server: Running) -> None:
    """Clients that never finish a header, a body or a reading, more of them than the server has room for."""
    body = json.dumps({"prompt": "a", "max_tokens": 300, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    with ExitStack() as stack:
        for sent in (b"POST /v1/comp", head % 100 + b"{", b"") * 100:
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE))
            slow.sendall(sent)
        for _ in range(3):
            reader = stack.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            reader.connect(("127.0.0.1", server.port))
            reader.sendall(head % len(body) + body)
        for _ in range(5):
            assert server.ask("/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
