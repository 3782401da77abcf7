"""Malformed requests against a real studio: it answers them with a reason, goes on, and holds no more memory."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from featherback.engine.host.process_tree import tree_unshared_rss
from tests.web.studio.browser import studio
from tests.web.test_hostile import GROWTH, SENDERS, Bodies, requests, send

CHOSEN = {"model": "tiny.gguf", "data": "missing.jsonl", "eval_data": None, "settings": {"epochs": "1"}, "name": "x"}
TALK = [{"role": "user", "content": "Hello"}]
BODIES: Bodies = [
    ("command", {**CHOSEN, "data": "sums.jsonl"}),
    ("examples", CHOSEN),
    ("forecast", CHOSEN),
    ("runs", CHOSEN),
    ("runs/x/samples", {"count": 3}),
    ("compare", {"runs": ["one", "two"]}),
    ("chat", {"run": "x", "ask": {"original": TALK, "trained": TALK}, "temperature": 0.5, "seed": 1}),
    ("export", {"run": "x", "to": "gguf", "type": None, "force": True}),
    ("upload", {"question": "a", "answer": "b"}),
]
"""What starts no command: the commands have their own tests, and each takes a second."""


@pytest.mark.parametrize(
    "count", [160, pytest.param(4000, marks=pytest.mark.full("four thousand requests; 160 stand for them"))]
)
def test_malformed_requests(folder: Path, count: int, capfd: pytest.CaptureFixture[str]) -> None:
    with studio(folder) as (address, process), ThreadPoolExecutor(SENDERS) as pool:
        place, _, key = address.partition("/#key=")
        port = int(place.rpartition(":")[2])
        head = (
            b"POST /api/%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Name: a.jsonl\r\n"
            b"Authorization: Bearer " + key.encode() + b"\r\nContent-Length: %d\r\n\r\n"
        )
        statuses: Counter[str] = Counter()
        held = []
        for quarter in range(4):
            sent = requests(quarter, count // 4, head, BODIES)
            statuses.update(pool.map(lambda one: send(port, one), sent))
            held.append(tree_unshared_rss(process.pid))
        assert statuses["200"] > count // 80
        assert statuses["400"] > count // 4
        assert not {status for status in statuses if status.startswith("5")}, statuses
        assert held[-1] - held[-2] < GROWTH
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "bug" not in said
    assert key not in said
