"""Messages, prompts and bodies of requests to the API, against a script."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.web.conftest import Files
from tests.web.forms import CHAT, HELLO, TEXT, VECTOR, refusal
from tests.web.scripted import CAPACITY, scripted


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
