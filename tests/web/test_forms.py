"""Requests and answers of the API against a script: fields, stop strings, log-probabilities, tool calls, errors."""

from __future__ import annotations

import asyncio
import base64
import json
from threading import Event
from typing import Any

import numpy as np
import pytest

from featherback.errors import FeatherbackError
from featherback.infer.batching import POOLINGS, BusyError
from featherback.infer.grammar import Grammars
from featherback.web.openai import calls, completions, replies
from featherback.web.openai.asked import MOST_ANSWERS
from tests.data import templates
from tests.web.conftest import Files
from tests.web.scripted import CAPACITY, scripted

CHAT, TEXT, VECTOR = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HELLO = [{"role": "user", "content": "Hello"}]


def events(answer: Any) -> list[Any]:
    """The events of a stream, without the last one."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.text.split("\n\n")
    assert lines.pop() == ""
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def streamed(answer: Any) -> str:
    return "".join(
        choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        for event in events(answer)
        for choice in event["choices"]
    )


def refusal(answer: Any) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["message"], error["param"]


def test_chat(files: Files) -> None:
    with scripted(files.model, "Hi there") as api:
        answer = api.post(CHAT, {"model": "tiny", "messages": HELLO}).json()
        [choice] = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": "Hi there", "refusal": None}
        assert choice["finish_reason"] == "stop"
        assert answer["object"] == "chat.completion"
        prompt = api.template.encode_prompt(HELLO)
        assert answer["usage"]["prompt_tokens"] == len(prompt)
        assert answer["usage"]["completion_tokens"] == 8
        [request] = api.batcher.requests
        assert list(request.prompt) == prompt
        assert request.max_tokens == CAPACITY - len(prompt)
        assert request.end_ids == api.tokenizer.end_ids


def test_every_event_has_a_reason_or_null(files: Files) -> None:
    """Clients that read "" or a missing reason wait for ever, or take the answer for complete."""
    for limit, reason in ((50, "stop"), (2, "length")):
        with scripted(files.model, "Hi there") as api:
            sent = events(api.post(CHAT, {"messages": HELLO, "stream": True, "max_tokens": limit}))
        reasons = [choice["finish_reason"] for event in sent for choice in event["choices"]]
        assert reasons == [None] * (len(reasons) - 1) + [reason]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_stop_strings_end_an_answer_and_are_never_sent(files: Files, path: str) -> None:
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "a"}
    for stop, expected in (("STOP", "one "), (["x", "two"], "one STOP "), ("é", "one STOP two "), ("zz", None)):
        text = "one STOP two é日"
        body = {**prompt, "stop": stop, "max_tokens": 50}
        with scripted(files.model, text) as api:
            whole = api.post(path, body).json()["choices"][0]
            found = whole["text"] if path == TEXT else whole["message"]["content"]
            stream = api.post(path, {**body, "stream": True})
        assert found == streamed(stream) == (text if expected is None else expected)
        assert whole["finish_reason"] == events(stream)[-1]["choices"][0]["finish_reason"] == "stop"


def test_an_answer_that_stops_is_cancelled(files: Files) -> None:
    with scripted(files.model, "one STOP two") as api:
        api.batcher.ends = False
        body = {"messages": HELLO, "stop": "STOP"}
        assert api.post(CHAT, body).json()["choices"][0]["message"]["content"] == "one "
        assert [ticket.cancelled for ticket in api.batcher.tickets] == [True]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_answer(files: Files, stream: bool) -> None:
    """Before the first token, and in the middle of a stream."""
    for text in ("", "half an answer"):
        with scripted(files.model, text) as api:
            api.batcher.ends = False
            sent = api.leave(CHAT, {"messages": HELLO, "stream": stream, "n": 2})
            assert [ticket.cancelled for ticket in api.batcher.tickets] == [True, True]
            assert not any(b"[DONE]" in message.get("body", b"") for message in sent)


def test_a_planted_reply_that_forgets_the_flush_is_caught(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies.Stops, "flush", lambda self: "")
    with scripted(files.model, "one ST") as api:
        answer = api.post(CHAT, {"messages": HELLO, "stop": "STOP"}).json()
        assert answer["choices"][0]["message"]["content"] != "one ST"


def test_log_probabilities_of_chat(files: Files) -> None:
    with scripted(files.model, "é!") as api:
        body = {"messages": HELLO, "logprobs": True, "top_logprobs": 2}
        for stream in (False, True):
            answer = api.post(CHAT, {**body, "stream": stream})
            choices = [event["choices"][0] for event in events(answer)[1:]] if stream else answer.json()["choices"]
            content = [each for choice in choices for each in choice["logprobs"]["content"]]
            assert [(each["token"], each["bytes"], each["logprob"]) for each in content] == [
                ("\ufffd", [0xC3], -0.5),
                ("\ufffd", [0xA9], -0.5),
                ("!", [33], -0.5),
            ]
            assert content[2]["top_logprobs"] == [
                {"token": "!", "bytes": [33], "logprob": -0.5},
                {"token": "\0", "bytes": [0], "logprob": -9999.0},
            ]
        assert api.post(CHAT, {**body, "logprobs": False}).status_code == 400
        assert api.post(CHAT, {**body, "top_logprobs": 21}).status_code == 400


def test_log_probabilities_end_where_the_text_does(files: Files) -> None:
    with scripted(files.model, "abSTOPc") as api:
        answer = api.post(CHAT, {"messages": HELLO, "logprobs": True, "stop": "STOP"}).json()
        assert [each["token"] for each in answer["choices"][0]["logprobs"]["content"]] == ["a", "b"]


def test_log_probabilities_of_completions(files: Files) -> None:
    with scripted(files.model, "ab") as api:
        answer = api.post(TEXT, {"prompt": "x", "logprobs": 1}).json()
        assert answer["choices"][0]["logprobs"] == {
            "tokens": ["a", "b"],
            "token_logprobs": [-0.5, -0.5],
            "top_logprobs": [{"a": -0.5}, {"b": -0.5}],
            "text_offset": [0, 1],
        }


def test_several_answers_and_prompts(files: Files) -> None:
    with scripted(files.model, "a1", "a2", "b1", "b2") as api:
        answer = api.post(TEXT, {"prompt": ["a", "bb"], "n": 2, "seed": 5, "temperature": 1, "echo": True}).json()
        assert [(each["index"], each["text"]) for each in answer["choices"]] == [
            (0, "aa1"),
            (1, "aa2"),
            (2, "bbb1"),
            (3, "bbb2"),
        ]
        assert [request.sampler.seed for request in api.batcher.requests] == [5, 6, 5, 6]
        assert answer["usage"]["prompt_tokens"] == 3
        assert answer["usage"]["completion_tokens"] == 8
        many = api.post(TEXT, {"prompt": ["a"] * MOST_ANSWERS, "n": 2})
        assert refusal(many)[0] == 400


def test_streams_of_several_answers_have_an_index(files: Files) -> None:
    with scripted(files.model, "first", "second") as api:
        body = {"messages": HELLO, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
        *found, last = events(api.post(CHAT, body))
        texts = ["", ""]
        for event in found:
            assert event["usage"] is None
            for choice in event["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")
        assert texts == ["first", "second"]
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 11


def test_fields_reach_the_sampler(files: Files) -> None:
    with scripted(files.model, "a") as api:
        body = {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.125, "seed": -2, "user": "me"}
        api.post(CHAT, {"messages": HELLO, "max_tokens": 9, "max_completion_tokens": 7, **body})
        [request] = api.batcher.requests
        sampler = request.sampler
        assert (sampler.temperature, sampler.top_p, sampler.top_k, sampler.min_p) == (0.5, 0.25, 3, 0.125)
        assert (sampler.seed, request.client, request.max_tokens) == (2**64 - 2, "me", 7)
        for odd in ({"temperature": 1e-300}, {"top_p": 0}, {"top_k": -1}, {"seed": 2**64 - 1, "n": 3}):
            assert api.post(CHAT, {"messages": HELLO, **odd}).status_code == 200, odd


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": "hot"}, "temperature", "must be a number of at least 0"),
    ({"temperature": -1}, "temperature", "must be a number"),
    ({"temperature": True}, "temperature", "must be a number"),
    ({"top_p": 1.5}, "top_p", "from 0 to 1"),
    ({"top_k": 1.5}, "top_k", "whole number"),
    ({"n": 0}, "n", "from 1 to 16"),
    ({"n": 10**400}, "n", "a number of many digits"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"seed": "x"}, "seed", "from -9223372036854775808 to 18446744073709551615"),
    ({"stop": [""]}, "stop", "1 to 1000 characters"),
    ({"stop": 5}, "stop", "must be a string, or a list"),
    ({"stream": "yes"}, "stream", "true or false"),
    ({"stream_options": {"include_usage": True}}, "stream_options", 'needs "stream": true'),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "is not a field"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "one of: text, json_object, json_schema"),
    ({"response_format": {"type": []}}, "response_format.type", "one of: text"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "is missing"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "response_format.schema", "an object"),
    ({"response_format": {"type": "json_object", "schema": 5}}, "response_format.schema", "must be an object"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objekt"}}}},
        "response_format",
        "Invalid type: objekt",
    ),
    ({"response_format": "json"}, "response_format", "must be an object"),
    ({"frequency_penalty": 2.5}, "frequency_penalty", "from -2 to 2"),
    ({"presence_penalty": "a"}, "presence_penalty", "must be a number"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "must have token ids from 0 to 258"),
    ({"logit_bias": {"259": 1}}, "logit_bias", "must have token ids"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "from -100 to 100"),
    ({"logit_bias": [5]}, "logit_bias", "must be an object"),
    ({"logit_bias": {"1": 10**400}}, "logit_bias", "each with a number from -100 to 100"),
    ({"repetition_penalty": 0}, "repetition_penalty", "from 0.01 to 10"),
    ({"repeat_penalty": "a"}, "repeat_penalty", "must be a number"),
    ({"repeat_penalty": 1.1, "repetition_penalty": 1.1}, "repeat_penalty", "are the same; remove one"),
    ({"repeat_last_n": -2}, "repeat_last_n", "from -1"),
    ({"repeat_last_n": 10**20}, "repeat_last_n", "from -1"),
    ({"max_tokens": -2}, "max_tokens", "at least 1"),
    ({"json_schema": {}, "guided_json": {}}, "response_format.schema", "is given twice"),
    ({"temprature": 0.5}, "temprature", "Did you mean `temperature`?"),
    ({"model": 5}, "model", "must be a string"),
    ({"user": []}, "user", "must be a string"),
]


@pytest.mark.parametrize(("field", "param", "said"), WRONG)
def test_wrong_fields_are_named(files: Files, field: dict[str, Any], param: str, said: str) -> None:
    with scripted(files.model, "a") as api:
        for path, prompt in ((CHAT, {"messages": HELLO}), (TEXT, {"prompt": "a"})):
            status, message, named = refusal(api.post(path, {**prompt, **field}))
            assert (status, named) == (400, param)
            assert said in message
            assert message.endswith((".", "?"))
        assert not api.batcher.requests


def test_other_paths_are_told_where_the_api_is(files: Files) -> None:
    with scripted(files.model, "a") as api:
        status, message, _ = refusal(api.post("/chat/completions", {"messages": HELLO}))
        assert (status, "Did you mean `/v1/chat/completions`?" in message) == (404, True)


def test_harmless_fields_are_ignored(files: Files) -> None:
    with scripted(files.model, "a") as api:
        body = {"metadata": {"a": "b"}, "store": True, "frequency_penalty": 0, "logit_bias": {}, "tools": None}
        body |= {"presence_penalty": 0.0, "response_format": {"type": "text"}, "service_tier": "auto", "seed": None}
        body |= {"skip_special_tokens": True, "ignore_eos": False, "stop_token_ids": [], "min_tokens": 0}  # of vLLM
        body |= {
            "length_penalty": 1.0,
            "use_beam_search": False,
            "include_stop_str_in_output": False,
            "keep_alive": "5m",
        }
        assert api.post(CHAT, {"messages": HELLO, **body}).status_code == 200
        for changes in (
            {"skip_special_tokens": False},
            {"ignore_eos": True},
            {"stop_token_ids": [5]},
            {"min_tokens": 2},
        ):
            said = api.post(CHAT, {"messages": HELLO, **changes})
            assert (said.status_code, said.json()["error"]["code"]) == (400, "unsupported_parameter"), changes


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_no_limit_of_tokens(files: Files, path: str) -> None:
    prompt: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": "a"}
    with scripted(files.model, "Yes") as api:
        for given in (-1, None, 5):
            assert api.post(path, {**prompt, "max_tokens": given}).status_code == 200
        unlimited, missing, five = (len(each.prompt) + each.max_tokens for each in api.batcher.requests)
        assert unlimited == CAPACITY
        assert missing == (CAPACITY if path == CHAT else len(api.batcher.requests[1].prompt) + 16)
        assert five == len(api.batcher.requests[2].prompt) + 5


def test_a_seed_of_minus_one_is_random(files: Files) -> None:
    with scripted(files.model, "a") as api:
        for _ in range(2):
            assert api.post(CHAT, {"messages": HELLO, "seed": -1}).status_code == 200
        assert len({request.sampler.seed for request in api.batcher.requests}) == 2


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


def test_an_answer_continues_a_message(files: Files) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "Sure: <|im_end|> "}]
    with scripted(files.model, "a") as api:
        body = {"messages": begun, "continue_final_message": True, "add_generation_prompt": False}
        assert api.post(CHAT, body).json()["choices"][0]["message"]["content"] == "a"
        prompt = [*api.batcher.requests[0].prompt]
        assert prompt == [*api.template.encode_prompt(HELLO), *b"Sure: <|im_end|> "]  # the name is plain text
        for odd in ({"messages": HELLO}, {"add_generation_prompt": True}, {"continue_final_message": False}):
            assert api.post(CHAT, body | odd).status_code == 400, odd
        assert api.post(CHAT, {"messages": begun}).status_code == 200  # another turn, as at OpenAI


THINKING = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% if enable_thinking is defined and not enable_thinking %}()"
    "{% endif %}{{ reasoning_effort or '' }}{{ note or '' }}{% endif %}"
)


def test_variables_of_the_chat_template(files: Files) -> None:
    with scripted(files.model, "a", chat_template=THINKING) as api:

        def end(**fields: Any) -> str:
            assert api.post(CHAT, {"messages": HELLO, **fields}).status_code == 200
            return str(api.tokenizer.decode(api.batcher.requests[-1].prompt)).partition("assistant: ")[2]

        assert end() == ""
        assert end(chat_template_kwargs={"enable_thinking": True, "unknown": 1}) == ""
        assert end(chat_template_kwargs={"enable_thinking": False}) == "()"
        assert end() == ""  # the next request does not have them
        assert end(reasoning_effort="low") == "low"
        for wrong, said in (
            ({"messages": []}, "which the request has elsewhere"),
            ({"note": "<|im_end|>"}, "contains the control token <|im_end|>"),
        ):
            status, message, _ = refusal(api.post(CHAT, {"messages": HELLO, "chat_template_kwargs": wrong}))
            assert status == 400
            assert said in message


def test_control_tokens_in_completions_if_the_server_reads_them(files: Files) -> None:
    with scripted(files.model, "a") as api:
        api.service.control_tokens = True
        api.post(TEXT, {"prompt": "a<|im_end|>b"})
        assert [*api.batcher.requests[0].prompt] == [97, 258, 98]
        api.post("/v1/embeddings", {"input": "a<|im_end|>b"})  # only in completions


BAD_MESSAGES: list[tuple[Any, str]] = [
    (None, '"messages" must be a list'),
    ([], '"messages" must be a list'),
    ("hello", '"messages" must be a list'),
    ([5], "must be an object"),
    ([{"content": "a"}], "role"),
    ([{"role": "user"}], '"messages[0].content" must be a string'),
    ([{"role": "user", "content": 5}], "must be a string"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "the model reads only text"),
    ([{"role": "user", "content": ["a"]}], "the model reads only text"),
    ([{"role": "us er", "content": "a"}], "role"),
    ([{"role": "us er" * 1000, "content": "a"}], "role"),
    ([{"role": "assistant", "tool_calls": [{"function": {}}]}], 'no function "name"'),
    ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "not valid JSON"),
    ([{"role": "user", "content": "\ufdd0"}], "not valid characters"),
]


@pytest.mark.parametrize(("messages", "said"), BAD_MESSAGES)
def test_bad_messages(files: Files, messages: Any, said: str) -> None:
    with scripted(files.model, "a") as api:
        status, message, _ = refusal(api.post(CHAT, {"messages": messages}))
        assert status == 400
        assert said in message
        assert len(message) < 300


def test_content_may_have_parts(files: Files) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    with scripted(files.model, "a") as api:
        api.post(CHAT, {"messages": [{"role": "user", "content": parts, "name": None}]})
        assert list(api.batcher.requests[0].prompt) == api.template.encode_prompt(HELLO)


def test_control_tokens_in_a_message_are_plain_text(files: Files) -> None:
    with scripted(files.model, "a") as api:
        api.post(CHAT, {"messages": [{"role": "user", "content": "<|im_end|>"}]})
        api.post(TEXT, {"prompt": "<|im_end|>"})
        [conversation, text] = [request.prompt for request in api.batcher.requests]
        assert list(conversation).count(258) == 1  # the template's own
        assert 258 not in text


def test_prompts_of_completions(files: Files) -> None:
    with scripted(files.model, "a") as api:
        for prompt in ("ab", ["ab"], [97, 98], [[97, 98]]):
            assert api.post(TEXT, {"prompt": prompt}).status_code == 200
            assert list(api.batcher.requests[-1].prompt) == [97, 98]
            assert api.batcher.requests[-1].max_tokens == 16
        for prompt in (None, [], [[]], "", [1.5], [-1], [259], [[97], [300]], {"a": 1}, [True], [["a"]]):
            assert refusal(api.post(TEXT, json.dumps({"prompt": prompt}).encode()))[0] == 400, prompt


def test_a_prompt_that_is_too_long(files: Files) -> None:
    with scripted(files.model, "a") as api:
        for path, body in (
            (TEXT, {"prompt": "a" * CAPACITY}),
            (CHAT, {"messages": [{"role": "user", "content": "a" * CAPACITY}]}),
            (VECTOR, {"input": "a" * CAPACITY}),
        ):
            answer = api.post(path, body)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert api.post(TEXT, {"prompt": "a" * (CAPACITY - 1), "max_tokens": 99}).status_code == 200
        assert api.batcher.requests[-1].max_tokens == 1


def test_half_a_surrogate_pair_is_rejected(files: Files) -> None:
    with scripted(files.model, "a") as api:
        for field in ("model", "prompt", "user", "stop", "\ud800"):
            answer = api.post(TEXT, json.dumps({"prompt": "a", field: "\ud800"}).encode())
            assert refusal(answer)[:2] == (400, "The request has half a surrogate pair, which is not valid Unicode.")
        assert api.post(TEXT, json.dumps({"prompt": "👍", "user": r"\ud800"}).encode()).status_code == 200


NO_JSON = (b"", b"{", b"[]", b"5", b"\xff", b'{"model": NaN}', b'{"a": ' + b"9" * 5000 + b"}", b"[" * 100_000)


@pytest.mark.parametrize("body", NO_JSON, ids=lambda body: str(body[:12]))
def test_bodies_that_are_no_json_object(files: Files, body: bytes) -> None:
    with scripted(files.model, "a") as api:
        for path in (CHAT, TEXT, VECTOR, "/v1/adapters"):
            status, message, _ = refusal(api.post(path, body))
            assert status == 400
            assert "body of the request" in message


def test_a_model_without_a_template_cannot_chat(files: Files) -> None:
    with scripted(files.base, "a") as api:
        answer = api.post(CHAT, {"messages": HELLO})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "no_chat_template"
        assert api.post(TEXT, {"prompt": "a"}).status_code == 200


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


@pytest.mark.parametrize(
    ("field", "window"), [("repetition_penalty", None), ("repeat_penalty", 64), ("repeat_penalty", 3)]
)
def test_a_penalty_reaches_the_sampler(files: Files, field: str, window: int | None) -> None:
    more = {"repeat_last_n": window} if window == 3 else {}
    with scripted(files.model, "a") as api:
        assert api.post(TEXT, {"prompt": "abcd", field: 1.5, **more}).status_code == 200
        sampler = api.batcher.requests[-1].sampler
        assert (sampler.biases.repetition, sampler.biases.window, [*sampler.prompt]) == (1.5, window, [*b"abcd"])
        for off in ({field: 1}, {"repeat_penalty": 1.2, "repeat_last_n": 0}):
            api.post(TEXT, {"prompt": "a", **off})
            assert not hasattr(api.batcher.requests[-1].sampler, "biases")


def test_text_between_a_prompt_and_a_suffix(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(files.model, "a") as api:
        names = [api.tokenizer.name(token) for token in (256, 257, 258)]
        with monkeypatch.context() as patched:
            patched.setattr(completions, "_FILL_IN", [("<none>", *names[1:]), names])
            assert api.post(TEXT, {"prompt": ["a", "b<|im_end|>"], "suffix": "c<|im_end|>"}).status_code == 200
            for request, before in zip(api.batcher.requests, (b"a", b"b<|im_end|>"), strict=True):
                assert [*request.prompt] == [256, *before, 257, *b"c<|im_end|>", 258]
            assert api.post(TEXT, {"prompt": "a", "suffix": "b", "echo": True}).status_code == 400
            for stream in (True, False):  # as Continue's code asks
                body = {
                    "model": "tiny",
                    "prompt": "a",
                    "suffix": "b",
                    "max_tokens": 5,
                    "stop": ["\n\n"],
                    "stream": stream,
                }
                answer = api.post(f"{TEXT[:3]}/fim/completions", body)
                text = streamed(answer) if stream else answer.json()["choices"][0]["message"]["content"]
                assert text == "a"
                request = api.batcher.requests[-1]
                assert ([*request.prompt], request.max_tokens) == ([256, *b"a", 257, *b"b", 258], 5)
            for odd in ({"echo": True}, {"logprobs": 1}):
                assert api.post(f"{TEXT[:3]}/fim/completions", {"prompt": "a", **odd}).status_code == 400
        status, message, named = refusal(api.post(TEXT, {"prompt": "a", "suffix": "b"}))
        assert (status, named) == (400, "suffix")
        assert "Use a model for code" in message
        assert api.post(TEXT, {"prompt": "a", "suffix": ""}).status_code == 200
        assert api.post(CHAT, {"messages": HELLO, "suffix": "b"}).status_code == 400


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


@pytest.mark.parametrize("pooling", POOLINGS)
def test_embeddings(files: Files, pooling: str) -> None:
    with scripted(files.model, "a", pooling=pooling) as api:
        plain = api.post(VECTOR, {"input": ["ab", "c"], "model": "tiny"}).json()
        coded = api.post(VECTOR, {"input": [[97, 98], [99]], "encoding_format": "base64"}).json()
        states = np.array([[97.0, 1, 2], [98, 1, 2]])
        expected = states.mean(0) if pooling == "mean" else states[-1]
        expected /= np.linalg.norm(expected)
        first, second = (each["embedding"] for each in plain["data"])
        assert np.allclose(first[:3], expected)
        assert np.isclose(np.linalg.norm(second), 1)
        assert base64.b64decode(coded["data"][0]["embedding"]) == np.array(first, "<f4").tobytes()
        assert plain["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
        width = api.batcher.model.config.hidden_size
        assert api.post(VECTOR, {"input": "a", "dimensions": width}).status_code == 200
        for wrong in ({"dimensions": 2}, {"encoding_format": "int8"}, {"input": ""}, {"input": []}, {"truncate": 5}):
            assert api.post(VECTOR, {"input": "a", **wrong}).status_code == 400, wrong


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


def test_more_messages_or_fields_than_can_be_answered(files: Files) -> None:
    with scripted(files.model, "a") as api:
        answer = api.post(CHAT, {"messages": HELLO * (CAPACITY + 1)})
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        answer = api.post(TEXT, {f"x{number}": 1 for number in range(60_000)})
        assert "too many fields" in answer.json()["error"]["message"]
