"""/v1/responses: the same answers as /v1/chat/completions, in the form that the official client reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response

from tests.data import templates
from tests.infer.test_grammar import BILL, is_bill
from tests.web.conftest import Files
from tests.web.scripted import scripted
from tests.web.serving import Running

PATH, CHAT = "/v1/responses", "/v1/chat/completions"
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": True}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, whose names are those in the data."""
    found = []
    for block in text.strip().split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == [*range(len(found))]
    return found


def test_the_prompt_is_that_of_the_same_chat_request(files: Files) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    said = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "Rain"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It rains."}]},
        {"role": "user", "content": "Thanks"},
    ]
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Rain"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Thanks"},
    ]
    function = {name: TOOL[name] for name in ("name", "parameters")}
    with scripted(files.model, "a", chat_template=templates.QWEN2_5) as api:
        body = {"input": said, "instructions": "Be brief.", "tools": [TOOL], "max_output_tokens": 9, "store": False}
        assert api.post(PATH, body).status_code == 200
        body = {"messages": chat, "tools": [{"type": "function", "function": function}], "max_tokens": 9}
        assert api.post(CHAT, body).status_code == 200
        first, second = api.batcher.requests
        assert (first.prompt, first.max_tokens) == (second.prompt, second.max_tokens)


@pytest.mark.parametrize(
    ("text", "most", "status"), [("Hello", 9, "completed"), ("Hello", 3, "incomplete"), ("", 9, "completed")]
)
def test_an_answer_and_its_stream(files: Files, text: str, most: int, status: str) -> None:
    with scripted(files.model, text) as api:
        body = {"input": "Hi", "max_output_tokens": most}
        whole = Response.model_validate(api.post(PATH, body).json(), strict=False)
        stream = events(api.post(PATH, {**body, "stream": True}).text)
    assert (whole.output_text, whole.status) == (text[:most], status)
    assert (whole.incomplete_details is None) == (status == "completed")
    assert whole.usage is not None
    assert whole.usage.output_tokens == len(text[:most])
    assert "".join(each["delta"] for each in stream if each["type"] == "response.output_text.delta") == text[:most]
    assert [each["type"] for each in stream[:4]] == [
        f"response.{name}" for name in ("created", "in_progress", "output_item.added", "content_part.added")
    ]
    assert stream[-1]["type"] == f"response.{status}"
    last = Response.model_validate(stream[-1]["response"])
    assert (last.output_text, last.usage) == (whole.output_text, whole.usage)


def test_tool_calls(files: Files) -> None:
    with scripted(files.model, CALL, chat_template=templates.QWEN2_5) as api:
        body = {"input": "Weather?", "tools": [TOOL], "max_output_tokens": 200}
        [call] = api.post(PATH, body).json()["output"]
        stream = events(api.post(PATH, {**body, "stream": True}).text)
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "weather", {"city": "Oslo"})
    done = next(each for each in stream if each["type"] == "response.function_call_arguments.done")
    assert json.loads(done["arguments"]) == {"city": "Oslo"}
    assert stream[-1]["response"]["output"][-1]["name"] == "weather"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"input": 5}, "must be a text, or a list"),
        ({"input": [5]}, "must be an object"),
        ({"input": ["message"]}, "must be an object"),
        ({"input": ["function_call"]}, "must be an object"),
        ({"input": ["reasoning", {"role": "user", "content": "Hi"}]}, "must be an object"),
        ({"input": [{"type": "image"}]}, "has an item of the type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "the model reads only text"),
        ({"previous_response_id": "resp_1"}, "keeps no answers"),
        ({"background": True}, "not supported"),
        ({"tools": [{"type": "web_search"}]}, "only tools of the type function"),
        ({"tools": 5}, "must be a list"),
        ({"text": {"format": {"type": "yaml"}}}, "expected one of"),
        ({"temprature": 1}, "is not a field"),
        ({"reasoning": {"effrt": 1}}, "is not a field"),
    ],
)
def test_what_is_refused(files: Files, fields: dict[str, Any], said: str) -> None:
    with scripted(files.model, "a") as api:
        answer = api.post(PATH, {"input": "Hi", **fields})
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]


def test_the_official_client(server: Running) -> None:
    client = server.client()
    form: Any = {"format": {"type": "json_schema", "name": "bill", "schema": BILL, "strict": True}}
    asked: Any = {"model": "tiny", "input": "Hi", "temperature": 1, "max_output_tokens": 200, "text": form}
    assert is_bill(client.responses.create(**asked).output_text)
    with client.responses.stream(**asked) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text
    assert is_bill(final.output_text)
