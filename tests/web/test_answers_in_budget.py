"""What answers hold until they are sent is part of the budget: many vectors, and many log-probabilities."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from featherback.core.sizes import MB
from tests.support.tiers import some
from tests.support.tiny_chat import write_tiny_talker
from tests.web.serving import PATIENCE, Running, least_memory, serving, write_adapter
from tests.web.test_many import Watch

ROOM = 4 * MB
"""What the budgets leave for requests."""
WIDE = 384
"""The numbers of a vector. Two thousand vectors take 25 MB as Python numbers, and 17 MB as text."""
CONTEXT = 512
Body = dict[str, Any]


class Case(NamedTuple):
    """Requests that are sent at once, to a server with options."""

    path: str
    bodies: Sequence[Body]
    options: Sequence[str] = ()


def completions(count: int, *options: str, **fields: Any) -> Case:
    return Case("completions", [{"prompt": f"{number} Hello", **fields} for number in range(count)], options)


def chats(count: int, *options: str, **fields: Any) -> Case:
    bodies = [{"messages": [{"role": "user", "content": f"{number} Hello"}], **fields} for number in range(count)]
    return Case("chat/completions", bodies, options)


def embeddings(count: int, texts: int, **fields: Any) -> Case:
    return Case("embeddings", [{"input": ["a"] * texts, **fields}] * count)


TOOLS = [
    {"type": "function", "function": {"name": f"f{number}", "parameters": {"type": "object"}}} for number in range(700)
]
LONG = {"messages": [{"role": "user", "content": "The quick brown fox. " * 20}], "max_tokens": 60}
BROKEN = {
    "log-probabilities": chats(4, n=4, logprobs=True, top_logprobs=20, max_tokens=300),
    "two thousand vectors": embeddings(1, 2048),
}
OTHERS = {
    "one vector": Case("embeddings", [{"input": "a" * 500}]),
    "three hundred vectors": embeddings(1, 300),
    "a thousand vectors, three times": embeddings(3, 1000),
    "two thousand vectors in base64": embeddings(2, 2048, encoding_format="base64"),
    "vectors of ids": Case("embeddings", [{"input": [[1, 2, 3]] * 1500}] * 2),
    "log-probabilities of completions": completions(4, n=4, logprobs=20, max_tokens=100),
    "streams of log-probabilities": chats(8, n=2, logprobs=True, top_logprobs=20, max_tokens=100, stream=True),
    "long log-probabilities": completions(8, logprobs=20, max_tokens=480),
    "sixteen answers": chats(4, n=16, max_tokens=60),
    "long chats": Case("chat/completions", [LONG] * 16),
    "long chats, q8_0": Case("chat/completions", [LONG] * 16, ("--kv", "q8_0")),
    "long chats, q4_0": Case("chat/completions", [LONG] * 16, ("--kv", "q4_0")),
    "long chats with a cache": Case("chat/completions", [LONG] * 16, ("--prefix-cache", "prefixes")),
    "whole answers": chats(16),
    "lists of ids": Case("completions", [{"prompt": [1] * 30_000}] * 40),
    "many messages": Case("chat/completions", [{"messages": [{"role": "user", "content": ""}] * 1200}] * 8),
    "tools": chats(8, tools=TOOLS[:90], max_tokens=1),
    "too many tools": chats(8, tools=TOOLS, max_tokens=1),
    "adapters": Case(
        "chat/completions", [{**LONG, "model": ("wide", "one", "two")[number % 3]} for number in range(16)],
        ("--adapter", "one", "--adapter", "two"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with few weights and wide vectors, whose answers do not end."""
    sizes = {"hidden_size": WIDE, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 128}
    return write_tiny_talker(tmp_path_factory.mktemp("wide") / "wide.gguf", **sizes)


def check_budget(model: Path, case: Case) -> None:
    """Raise AssertionError if a server with the smallest budget and `ROOM` exceeds it, or answers nothing."""
    options = [str(model.parent / word) if word in ("one", "two", "prefixes") else word for word in case.options]
    options += ["--context", str(CONTEXT)]
    budget = least_memory(model, *options) + ROOM
    with serving(model, *options, "--memory", f"{budget // MB}MB") as server, Watch(server).watching() as watch:
        with ThreadPoolExecutor(len(case.bodies)) as pool:
            statuses = [*pool.map(lambda body: _status(server, case.path, body), case.bodies)]
        assert server.ask("/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
        assert set(statuses) <= {200, 400, 413, 503}
        assert watch.most <= budget, f"{watch.most / MB:.1f} of {budget / MB:.0f} MB"
    if case in BROKEN.values():
        assert 200 in statuses


def _status(server: Running, path: str, body: Body) -> int:
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    with closing(client):
        client.request("POST", f"/v1/{path}", json.dumps(body))
        answer = client.getresponse()
        answer.read()
        return answer.status


@pytest.mark.parametrize("name", some(BROKEN, 1))
def test_what_answers_hold_is_in_the_budget(wide: Path, name: str) -> None:
    check_budget(wide, BROKEN[name])


@pytest.mark.full("one server for each kind of answers")
@pytest.mark.parametrize("name", OTHERS)
def test_every_kind_of_answers_is_in_the_budget(wide: Path, name: str) -> None:
    for number, adapter in enumerate(("one", "two")):
        write_adapter(wide, wide.parent / adapter, number)
    check_budget(wide, OTHERS[name])
