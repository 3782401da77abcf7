"""Tool calls and schemas of the API, against a script."""

from __future__ import annotations

import json
from typing import Any

import pytest

from featherback.infer.grammar import Grammars
from featherback.web.openai import calls, replies
from tests.data import templates
from tests.web.conftest import Files
from tests.web.forms import CHAT, HELLO, TEXT, events, refusal
from tests.web.scripted import scripted

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", **SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"json_schema": SCHEMA},
        {"guided_json": SCHEMA},
    ],
)
def test_forms_of_a_schema(files: Files, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    start, followed = Grammars.start, list[Any]()
    monkeypatch.setattr(Grammars, "start", lambda self, schema, n: followed.append(schema) or start(self, schema, n))
    with scripted(files.model, "{}") as api:
        assert api.post(TEXT, {"prompt": "a", **fields}).status_code == 200
        assert api.post(CHAT, {"messages": HELLO, **fields}).status_code == 200
    assert followed == [SCHEMA] * 2


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


def test_calls_without_ids_and_messages_with_more_keys(files: Files) -> None:
    """What clients send back of an earlier answer."""
    called = {"id": None, "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    said = [
        {"role": "user", "content": "Hi", "id": 1, "opts": {"visible": False}, "name": None},
        {"role": "assistant", "content": None, "tool_calls": [called], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": None, "content": "sunny"},
        {"role": "assistant", "content": "Sunny.", "tool_calls": [], "audio": None},
        {"role": "user", "content": "And now?"},
    ]
    plain = [{key: each[key] for key in ("role", "content", "tool_calls") if each.get(key)} for each in said]
    with scripted(files.model, "Yes", chat_template=templates.QWEN2_5) as api:
        for messages in (said, plain):
            answer = api.post(CHAT, {"messages": messages, "tools": TOOLS})
            assert answer.status_code == 200, answer.text
        first, second = api.batcher.requests
        assert list(first.prompt) == list(second.prompt)


def test_tool_calls(files: Files) -> None:
    body = {"messages": HELLO, "tools": TOOLS, "max_tokens": 250}
    with scripted(files.model, f"Let me see. {CALL}\n{CALL}", chat_template=templates.QWEN2_5) as api:
        choice = api.post(CHAT, body).json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "Let me see."
        first, second = choice["message"]["tool_calls"]
        assert first["function"]["name"] == "weather"
        assert json.loads(first["function"]["arguments"]) == {"city": "Köln"}
        assert first["id"] != second["id"]
        assert '"weather"' in api.tokenizer.decode(api.batcher.requests[0].prompt)
        *_, last = events(api.post(CHAT, {**body, "stream": True}))
        assert [call["index"] for call in last["choices"][0]["delta"]["tool_calls"]] == [0, 1]
        assert last["choices"][0]["finish_reason"] == "tool_calls"
        for plain in ({"tools": None}, {"tool_choice": "none"}):
            found = api.post(CHAT, {**body, **plain}).json()["choices"][0]
            assert found["message"]["content"].startswith("Let me see. <tool_call>")
        assert api.post(CHAT, {**body, "tools": [{"type": "function"}]}).status_code == 400


TIME = {
    "type": "function",
    "function": {
        "name": "time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"$ref": "#/$defs/zone"}},
            "required": ["zone"],
            "$defs": {"zone": {"enum": ["UTC"]}},
        },
    },
}
NAMED = {"type": "function", "function": {"name": "time"}}


@pytest.mark.parametrize("choice", ["required", NAMED, {"type": "function", "name": "time"}])
def test_a_call_that_is_required(files: Files, choice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start, followed = Grammars.start, list[Any]()
    monkeypatch.setattr(Grammars, "start", lambda self, schema, n: followed.append(schema) or start(self, schema, n))
    body = {"messages": HELLO, "tools": [*TOOLS, TIME], "tool_choice": choice, "max_tokens": 90}
    inside = '{"name": "time", "arguments": {"zone": "UTC"}}'
    with scripted(files.model, inside, chat_template=templates.QWEN2_5) as api:
        found = api.post(CHAT, body).json()["choices"][0]
        assert found["finish_reason"] == "tool_calls"
        assert found["message"]["content"] is None
        [call] = found["message"]["tool_calls"]
        assert call["function"] == {"name": "time", "arguments": '{"zone": "UTC"}'}
        assert api.tokenizer.decode(api.batcher.requests[0].prompt).endswith("assistant\n<tool_call>\n")
        *_, last = events(api.post(CHAT, {**body, "stream": True}))
        assert last["choices"][0]["delta"]["tool_calls"][0]["function"] == call["function"]
        short = api.post(CHAT, {**body, "max_tokens": 9}).json()["choices"][0]
        assert (short["finish_reason"], short["message"]["content"]) == ("length", f"<tool_call>{inside[:9]}")
    shared = {"$defs": {"zone": {"enum": ["UTC"]}}}
    arguments = {"type": "object", "properties": {"zone": {"$ref": "#/$defs/zone"}}, "required": ["zone"]}
    time, weather = _call("time", arguments), _call("weather", {"type": "object", "properties": {}})
    expected = {"anyOf": [weather, time], **shared} if choice == "required" else {**time, **shared}
    assert followed == [expected] * 3


def _call(name: str, arguments: Any) -> Any:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def test_calls_that_cannot_be_required(files: Files) -> None:
    body = {"messages": HELLO, "tools": TOOLS, "tool_choice": "required"}
    other = {"name": "x", "parameters": {"type": "object", "$defs": {"zone": {"enum": ["CET"]}}}}
    odd: list[tuple[dict[str, Any], str, str]] = [
        ({"tools": [TIME] * 129}, "tools", "has 129 functions; at most 128 are accepted."),
        ({"tools": None}, "tool_choice", "the request has no such tool"),
        ({"tool_choice": {"type": "function", "function": {"name": "none"}}}, "tool_choice", "has no such tool"),
        ({"tool_choice": {"type": "function", "function": 5}}, "tool_choice", "has no such tool"),
        ({"tool_choice": "any"}, "tool_choice", 'expected one of: "auto", "none", "required"'),
        ({"tool_choice": ["auto"]}, "tool_choice", 'expected one of: "auto"'),
        ({"response_format": {"type": "json_object"}}, "tool_choice", "no response_format"),
        ({"tools": [TIME, {"type": "function", "function": other}]}, "tools", "Two tools define 'zone'"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}]},
            "tools",
            "Invalid type: objekt",
        ),
    ]
    with scripted(files.model, "{}", chat_template=templates.QWEN2_5) as api:
        for fields, param, said in odd:
            status, message, named = refusal(api.post(CHAT, body | fields))
            assert (status, named) == (400, param), fields
            assert said in message
        assert not api.batcher.requests
    with scripted(files.model, "{}", chat_template=templates.MISTRAL_V3) as api:
        status, message, named = refusal(api.post(CHAT, body))
        assert (status, named) == (400, "tool_choice"), message
        assert "a model that writes calls as <tool_call>" in message


def test_a_template_without_tools_rejects_them(files: Files) -> None:
    with scripted(files.model, "a") as api:
        status, message, _ = refusal(api.post(CHAT, {"messages": HELLO, "tools": TOOLS}))
        assert status == 400
        assert "drops or changes tool 1" in message


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{}</tool_call>",
        '<tool_call>{"name": "f"}',
        "a <tool_call> b",
        '<tool_call>{"name": "f"}</tool_call><tool_call>',
        f'{CALL}<tool_call>{{"name": 5}}</tool_call>',
        "<tool_cal",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    for size in (1, 3, 100):
        collector = calls.CallCollector(9)
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        found = [collector.push(replies.Piece(piece)) for piece in pieces]
        found.append(collector.push(replies.Piece("", finish="stop")))
        assert "".join(piece.text for piece in found) == text
        assert (found[-1].finish, found[-1].calls) == ("stop", ())


def test_calls_that_are_nested_too_deeply(files: Files) -> None:
    """A text of JSON in JSON, which Python can read, but not write again with a message around it."""
    with scripted(files.model, "a") as api:
        for depth in (100, 5_000, *range(900, 1_000, 5)):
            arguments = '{"a":' * depth + "1" + "}" * depth
            call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
            messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, *HELLO]
            answer = api.post(CHAT, {"messages": messages})
            assert answer.status_code in (200, 400), depth
            if answer.status_code == 400:
                assert "deep" in answer.json()["error"]["message"] or "recursion" in answer.json()["error"]["message"]
        assert api.post(CHAT, {"messages": HELLO}).status_code == 200
