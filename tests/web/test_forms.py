"""Answers of the API against a script: fields, stop strings, log-probabilities, several answers, vectors."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from featherback.infer.batching import POOLINGS
from featherback.web.openai import completions, replies
from featherback.web.openai.asked import MOST_ANSWERS
from tests.web.conftest import Files
from tests.web.forms import CHAT, HELLO, TEXT, VECTOR, events, refusal, streamed
from tests.web.scripted import CAPACITY, scripted


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
