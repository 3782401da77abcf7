"""How long `/health` takes while hostile clients keep a server busy, with and without a key.

A process of its own has 32 connections of eight kinds, each of which sends as fast as the server accepts it.

    .venv/bin/python -m benchmarks.hostile_clients [MODEL] [--seconds S] [--kinds KIND ...]
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from statistics import median

from benchmarks.http_server import serving

CONNECTIONS = 32
PATIENCE = 60
Parts = Iterator[bytes]


def head(path: str, *lines: str) -> bytes:
    """The header of a POST."""
    return "\r\n".join([f"POST /v1/{path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def sized(path: str, body: object, *lines: str) -> bytes:
    """A POST with a JSON body."""
    data = json.dumps(body).encode()
    return head(path, f"Content-Length: {len(data)}", *lines) + data


def chunks() -> Parts:
    """A body in chunks of one byte."""
    yield head("completions", "Transfer-Encoding: chunked")
    yield from itertools.repeat(b"1\r\n \r\n" * 2000)


def header_bytes() -> Parts:
    """A header that arrives byte by byte, but not so fast that the kernel is what is measured."""
    for byte in itertools.cycle(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 50 + b"\r\n"):
        yield bytes([byte])
        time.sleep(0.001)


def header_flood() -> Parts:
    """Headers of thousands of lines."""
    return itertools.repeat(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 7000 + b"\r\n")


def pipelined() -> Parts:
    """Requests that do not wait for answers."""
    return itertools.repeat(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)


def slow_body() -> Parts:
    """A body that hardly arrives."""
    yield head("completions", "Content-Length: 3000000")
    while True:
        yield b" "
        time.sleep(0.1)


def wrong_key() -> Parts:
    """Bodies of requests without the key, in small chunks."""
    yield head("completions", "Authorization: Bearer wrong", "Transfer-Encoding: chunked")
    yield from itertools.repeat(b"2\r\n  \r\n" * 2000)


def huge_prompt() -> Parts:
    """Prompts of four megabytes."""
    return itertools.repeat(sized("completions", {"prompt": " " * 3_900_000}))


def many_ids() -> Parts:
    """Prompts of millions of token ids."""
    return itertools.repeat(sized("completions", {"prompt": [1] * 1_300_000}))


def unread() -> Parts:
    """Streams that nobody reads."""
    yield sized("completions", {"prompt": "a", "max_tokens": 300, "stream": True})
    while True:
        time.sleep(1)
        yield b""


KINDS: dict[str, Callable[[], Parts]] = {
    each.__name__: each
    for each in (
        chunks, header_bytes, header_flood, pipelined, slow_body, wrong_key, huge_prompt, many_ids, unread,
    )
}  # fmt: skip


def attack(port: int, names: list[str]) -> None:
    """Send for ever."""
    for _, name in zip(range(CONNECTIONS), itertools.cycle(names)):
        threading.Thread(target=_send, args=(port, KINDS[name]), daemon=True).start()
    print("attacking", flush=True)
    sys.stdin.read()


def _send(port: int, kind: Callable[[], Parts]) -> None:
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
            if kind is not unread:
                threading.Thread(target=_read, args=(client,), daemon=True).start()
            for part in kind():
                client.sendall(part)


def _read(client: socket.socket) -> None:
    with suppress(OSError):
        while client.recv(1 << 16):
            pass


@contextmanager
def attackers(port: int, names: list[str]) -> Iterator[None]:
    """Attack from another process until the context ends."""
    words = [sys.executable, "-m", "benchmarks.hostile_clients", "--attack", str(port), "--kinds", *names]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(1)
            yield
        finally:
            process.kill()


def probed(port: int, seconds: float, key: str | None) -> list[float]:
    """Return how long `/health` takes, again and again."""
    found, end = [], time.monotonic() + seconds
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    while time.monotonic() < end:
        start = time.monotonic()
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        client.request("GET", "/health", headers=headers)
        status = client.getresponse().status
        client.close()
        assert status == 200, status
        found.append(time.monotonic() - start)
        time.sleep(0.05)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--attack", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.attack:
        attack(chosen.attack, chosen.kinds)
        return
    for key in (None, "k"):
        options = () if key is None else ("--api-key", key)
        with serving(chosen.model, *options) as server:
            for names in ([], chosen.kinds, *([name] for name in chosen.kinds)):
                if names:
                    with attackers(server.port, names):
                        found = probed(server.port, chosen.seconds, key)
                else:
                    found = probed(server.port, chosen.seconds, key)
                row = {"key": key is not None, "kinds": ", ".join(names), "probes": len(found)}
                row |= {"median_s": round(median(found), 3), "worst_s": round(max(found), 3)}
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
