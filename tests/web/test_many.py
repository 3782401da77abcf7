"""Many clients at once: no answer is lost or swapped, and the server stays within its budget."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import featherback as fb
from featherback.core.sizes import MB
from tests.infer.test_grammar import BILL, HOSTILE, is_bill
from tests.web.conftest import Files
from tests.web.serving import PATIENCE, Running, least_memory, serving

CLIENTS = 32
NAMES = ("tiny", "notes", "tone")
PROMPTS = ("One", "Two and two", "A longer prompt, for a change", "3")
LENGTH = 8
Expected = dict[tuple[str, str], str]


@pytest.fixture(scope="module")
def expected(files: Files) -> Expected:
    """(model, prompt) -> the greedy text after it."""
    model = fb.load(files.model)
    paths = {"tiny": None, "notes": files.notes, "tone": files.tone}
    found = {
        (name, prompt): model.generate(prompt, adapter=path, raw=True, max_tokens=LENGTH, compute="fp32")
        for name, path in paths.items()
        for prompt in PROMPTS
    }
    assert len(set(found.values())) == len(found)
    return found


class Watch:
    """The most memory that a server holds while it is watched."""

    def __init__(self, server: Running) -> None:
        self.server, self.most = server, 0

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.02):
                self.most = max(self.most, self.server.memory())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize(
    "each", [4, pytest.param(32, marks=pytest.mark.full("a thousand requests; a hundred stand for them"))]
)
def test_many_clients_get_their_own_answers_within_the_budget(files: Files, expected: Expected, each: int) -> None:
    options = ("--adapter", files.notes, "--adapter", files.tone, "--context", 200, "--compute", "fp32")
    budget = least_memory(files.model, *options)
    with serving(files.model, *options, "--memory", f"{budget // MB}MB") as server, Watch(server).watching() as watch:
        answers = asyncio.run(_ask_all(server, each))
        assert len(answers) == CLIENTS * each
        wrong = [(asked, text) for asked, text in answers if text != expected[asked]]
        assert not wrong
        assert watch.most <= budget
        assert server.errors.count(" 200 ") == CLIENTS * each


async def _ask_all(server: Running, each: int) -> list[tuple[tuple[str, str], str]]:
    """Every client sends its requests one after another, to another model each time; half of them stream."""
    found: list[tuple[tuple[str, str], str]] = []

    async def client(number: int) -> None:
        async with server.async_client() as api:
            for turn in range(each):
                name, prompt = NAMES[(number + turn) % len(NAMES)], PROMPTS[(number * 7 + turn) % len(PROMPTS)]
                options: Any = {"model": name, "prompt": prompt, "max_tokens": LENGTH, "temperature": 0}
                options["user"] = f"client {number}"
                if (number + turn // 2) % 2:
                    text = ""
                    async for event in await api.completions.create(stream=True, **options):
                        text += event.choices[0].text
                else:
                    text = (await api.completions.create(**options)).choices[0].text
                found.append(((name, prompt), text))

    await asyncio.gather(*map(client, range(CLIENTS)))
    return found


def test_requests_on_one_connection_are_answered_in_order(server: Running, expected: Expected) -> None:
    """A client need not wait for an answer before it sends the next request (pipelining)."""
    asked = [(name, prompt) for prompt in PROMPTS for name in NAMES]
    sent = b"".join(
        _request({"model": name, "prompt": prompt, "max_tokens": LENGTH, "temperature": 0}) for name, prompt in asked
    )
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client:
        client.sendall(sent)
        reader = client.makefile("rb")
        models = [_answer(reader)["model"] for _ in asked]
    assert models == [name for name, _ in asked]


def _request(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)


def _answer(reader: Any) -> Any:
    length = 0
    while (line := reader.readline()) != b"\r\n":
        if match := re.match(rb"content-length: (\d+)", line):
            length = int(match[1])
    return json.loads(reader.read(length))


def test_a_request_beyond_the_queue_is_told_to_come_again(files: Files) -> None:
    with serving(files.model, "--waiting", 1, "--context", 2000) as server:

        async def several() -> list[int]:
            async with server.async_client() as api:
                body = {"model": "tiny", "prompt": "a", "max_tokens": 1900, "temperature": 1}
                tasks = [api.completions.with_raw_response.create(**body) for _ in range(40)]
                return [
                    getattr(each, "status_code", 0) for each in await asyncio.gather(*tasks, return_exceptions=True)
                ]

        found = asyncio.run(several())
        assert set(found) == {200, 503}
        status, answer = server.ask("/completions", {"prompt": "a", "max_tokens": 2})
        assert (status, answer["object"]) == (200, "text_completion")


def test_too_small_a_budget_names_one_that_works(files: Files, tmp_path: Path) -> None:
    budget = least_memory(files.model, "--context", 200)
    with serving(files.model, "--context", 200, "--memory", f"{budget // MB}MB") as server:
        assert server.ask("/completions", {"prompt": "a" * 150, "max_tokens": 40})[0] == 200
        assert server.ask("/embeddings", {"input": "a" * 150})[0] == 200
        assert server.memory() <= budget


def test_json_mode_is_within_the_budget(files: Files) -> None:
    options = ("--context", 200, "--json-mode")
    budget = least_memory(files.model, *options)
    with serving(files.model, *options, "--memory", f"{budget // MB}MB") as server, Watch(server).watching() as watch:
        required = {f"property {number}": {"type": "integer"} for number in range(150)}
        large = {"type": "object", "properties": required, "required": [*required]}
        large_form: Any = {"type": "json_object", "schema": large}
        ask_large = {"prompt": "Hi", "response_format": large_form, "max_tokens": 30, "n": 8}
        assert server.ask("/completions", ask_large)[0] == 200
        form: Any = {"type": "json_schema", "json_schema": {"name": "bill", "schema": BILL}}
        asked = {"messages": [{"role": "user", "content": "Hi"}], "response_format": form, "max_tokens": 150}
        with ThreadPoolExecutor(8) as pool:
            answers = [*pool.map(lambda seed: server.ask("/chat/completions", asked | {"seed": seed}), range(8))]
        hostile: list[Any] = [{"type": "json_object", "schema": schema} for schema in HOSTILE.values()]
        with ThreadPoolExecutor(8) as pool:
            statuses = [
                *pool.map(lambda form: server.ask("/completions", ask_large | {"response_format": form})[0], hostile)
            ]
        assert set(statuses) == {200, 400}
        for status, answer in answers:
            assert status == 200
            assert is_bill(answer["choices"][0]["message"]["content"])
        assert watch.most <= budget


def test_a_budget_has_no_json_mode_unless_it_is_asked_for(files: Files) -> None:
    with serving(files.model, "--context", 200, "--memory", "300MB") as server:
        asked = {"prompt": "Hi", "response_format": {"type": "json_object"}}
        status, answer = server.ask("/completions", asked)
        assert status == 400
        assert "Start it with --json-mode" in answer["error"]["message"]
