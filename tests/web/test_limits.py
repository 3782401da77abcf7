"""Requests that are too long, too many or come while the server is busy, against a script."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from threading import Event
from typing import Any

import pytest
from starlette.requests import Request

from featherback.errors import FeatherbackError
from featherback.infer.batching import BusyError
from featherback.web.guard import HOLD
from featherback.web.openai.fields import Fields
from featherback.web.refusal import RefusedError
from tests.data import templates
from tests.web.conftest import Files
from tests.web.forms import CHAT, HELLO, TEXT, VECTOR, events
from tests.web.scripted import CAPACITY, scripted


def test_busy_and_broken(files: Files) -> None:
    with scripted(files.model, BusyError("1024 requests are waiting already.")) as api:
        for stream in (False, True):
            answer = api.post(CHAT, {"messages": HELLO, "stream": stream})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
            assert answer.json()["error"]["code"] == "busy"
    with scripted(files.model, "a", BusyError("Full.")) as api:
        api.batcher.ends = False
        assert api.post(CHAT, {"messages": HELLO, "n": 2}).status_code == 503
        assert [ticket.cancelled for ticket in api.batcher.tickets] == [True]
    for error, status in ((FeatherbackError("The file was truncated."), 400), (ValueError("bug"), 500)):
        with scripted(files.model, "ab") as api:
            api.batcher.ends = False
            submit = api.batcher.submit

            def failing(request: Any, error: Exception = error, submit: Any = submit) -> Any:
                ticket = submit(request)
                ticket.take()
                ticket.finish(error=error)
                return ticket

            api.batcher.submit = failing
            assert api.post(CHAT, {"messages": HELLO}, raises=False).status_code == status


def test_an_error_in_a_stream_is_an_event(files: Files) -> None:
    with scripted(files.model, "ab") as api:
        submit = api.batcher.submit

        def failing(request: Any) -> Any:
            ticket = submit(request)
            take = ticket.take

            def fail() -> Any:
                ticket.finish(error=FeatherbackError("The file was truncated."))
                ticket.take = lambda: []
                return take()

            ticket.take = fail
            return ticket

        api.batcher.ends = False
        api.batcher.submit = failing
        answer = api.post(CHAT, {"messages": HELLO, "stream": True})
        assert answer.status_code == 200
        assert events(answer)[-1]["error"]["message"] == "The file was truncated."


@pytest.mark.parametrize("path", [CHAT, TEXT, VECTOR])
def test_a_text_that_cannot_fit_is_not_encoded(files: Files, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    with scripted(files.model, "a") as api:
        most = CAPACITY * api.tokenizer.longest
        encoded = list[int]()
        encode = api.tokenizer.core.encode

        class Core:
            n_vocab = api.tokenizer.n_vocab

            def encode(self, text: str, parts: Any, places: bool) -> Any:
                encoded.append(len(text))
                return encode(text, parts, places)

        monkeypatch.setattr(api.tokenizer, "core", Core())
        for text in (" " * (most + 1), " " * 3_900_000):
            body = {CHAT: {"messages": [{"role": "user", "content": text}]}, TEXT: {"prompt": text}}
            answer = api.post(path, body.get(path, {"input": text}))
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert not encoded


@pytest.mark.parametrize("name", ["description", "arguments"])
def test_a_conversation_that_cannot_fit_is_not_encoded(
    files: Files, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its long text is in no content of a message."""
    with scripted(files.model, "a", chat_template=templates.QWEN2_5) as api:
        long = "a" * (api.batcher.capacity * api.tokenizer.longest + 1)
        tool = {"type": "function", "function": {"name": "f", "description": long if name == "description" else ""}}
        call = {"function": {"name": "f", "arguments": {"a": long if name == "arguments" else ""}}}
        messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, *HELLO]
        monkeypatch.setattr(api.template, "encode", lambda rendering: pytest.fail("was encoded"))
        answer = api.post(CHAT, {"messages": messages, "tools": [tool]})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert len(answer.text) < 1_000


def test_short_texts_do_not_wait_for_long_ones(files: Files) -> None:
    with scripted(files.model, "a") as api:
        begun, go_on = Event(), Event()

        def encode_long() -> None:
            begun.set()
            go_on.wait()

        async def both() -> str:
            long = asyncio.ensure_future(api.service.encode(1_000_000, encode_long))
            await asyncio.to_thread(begun.wait)
            short = await api.service.encode(10, lambda: "short")
            go_on.set()
            await long
            return short

        assert asyncio.run(both()) == "short"


def test_bodies_with_too_many_values(files: Files) -> None:
    with scripted(files.model, "a") as api:
        answer = api.post(TEXT, b'{"prompt": [' + b"1," * 500_000 + b"1]}")
        assert answer.status_code == 400
        assert "too many commas" in answer.json()["error"]["message"]


BODIES = {
    "empty objects": [{}] * 10_000,
    "nested objects": [{"a": {"b": {}}}] * 10_000,
    "lists": [[1]] * 10_000,
    "fields": {f"name {number}": "" for number in range(10_000)},
    "numbers": [number + 0.5 for number in range(10_000)],
    "words": [f"{number}" for number in range(10_000)],
    "a text of wide characters": "a" * 30_000 + "\U0001f600",
    "tools": [{"type": "function", "function": {"name": f"f{number}", "parameters": {}}} for number in range(2_000)],
}


@pytest.mark.parametrize("name", BODIES)
def test_the_memory_of_a_body_is_counted_before_it_is_parsed(name: str) -> None:
    counted, body = list[int](), json.dumps({"x": BODIES[name]}, ensure_ascii=False).encode()
    parts = [{"type": "http.request", "body": body}]

    async def receive() -> Any:
        return parts.pop()

    tracemalloc.start()
    fields = asyncio.run(Fields.of(Request({"type": "http", HOLD: counted.append}, receive)))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fields.take("x")
    assert kept < counted[0] + len(body)
    assert peak < counted[0] + 6 * len(body)  # the whole body as text, while it is parsed

    def full(nbytes: int) -> None:
        raise RefusedError("full", 503)

    parts.append({"type": "http.request", "body": b"[" + body})  # not JSON, so it was not parsed
    with pytest.raises(RefusedError, match="full"):
        asyncio.run(Fields.of(Request({"type": "http", HOLD: full}, receive)))


def test_more_messages_or_fields_than_can_be_answered(files: Files) -> None:
    with scripted(files.model, "a") as api:
        answer = api.post(CHAT, {"messages": HELLO * (CAPACITY + 1)})
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        answer = api.post(TEXT, {f"x{number}": 1 for number in range(60_000)})
        assert "too many fields" in answer.json()["error"]["message"]
