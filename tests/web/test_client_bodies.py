"""Requests in the form of Continue and Open WebUI, written by hand from the fields that they are known to send."""

from __future__ import annotations

from typing import Any

import pytest

from tests.data import templates
from tests.web.conftest import Files
from tests.web.scripted import scripted

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
READ = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {"type": "object", "required": ["filepath"], "properties": {"filepath": {"type": "string"}}},
    },
}
CALLED = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"filepath":"a.py"}'}}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Continue, chat": (
        CHAT,
        {
            "model": "tiny", "max_tokens": 4096, "stream": True, "temperature": 0.5, "top_p": 0.9, "stop": None,
            "frequency_penalty": 0.1, "presence_penalty": 0.1, "stream_options": {"include_usage": True},
            "messages": [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "Explain this"}]}],
        },
    ),
    "Continue, agent": (
        CHAT,
        {
            "model": "tiny", "max_tokens": 4096, "stream": True, "tools": [READ], "parallel_tool_calls": False,
            "messages": [
                SYSTEM, {"role": "user", "content": "Read a.py"},
                {"role": "assistant", "content": "", "tool_calls": [CALLED]},
                {"role": "tool", "content": "print(1)", "tool_call_id": "call_1"},
            ],
        },
    ),
    "Continue, completion in the editor": (
        TEXT,
        {
            "model": "tiny", "max_tokens": 256, "temperature": 0.01, "stream": True, "stop": ["<|endoftext|>", "\n\n"],
            "prompt": "<|fim_prefix|>def f():\n    <|fim_suffix|>\n<|fim_middle|>", "presence_penalty": None,
        },
    ),
    "Open WebUI, chat": (
        CHAT,
        {
            "model": "tiny", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.8, "seed": -1,
            "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": -1, "frequency_penalty": 0, "presence_penalty": 0,
            "reasoning_effort": "medium", "logit_bias": {"5": -100}, "chat_template_kwargs": {"enable_thinking": False},
            "stop": ["###"], "messages": [SYSTEM, {"role": "user", "content": "Hello"}], "user": "somebody",
        },
    ),
    "Open WebUI, title of a chat": (
        CHAT,
        {
            "model": "tiny", "stream": False, "max_completion_tokens": 1000,
            "messages": [{"role": "user", "content": "### Task:\nGenerate a title for the chat history."}],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_bodies_of_clients(files: Files, name: str) -> None:
    path, body = BODIES[name]
    with scripted(files.model, "Yes.", chat_template=templates.QWEN2_5) as api:
        answer = api.post(path, body)
        assert answer.status_code == 200, answer.text
        assert "Yes." in answer.text or '"content": "Yes."' in answer.text


@pytest.mark.parametrize(("parallel", "count"), [(True, 2), (False, 1)])
def test_calls_one_at_a_time(files: Files, parallel: bool, count: int) -> None:
    call = '<tool_call>{"name": "read_file", "arguments": {"filepath": "a"}}</tool_call>'
    body = {**BODIES["Continue, agent"][1], "stream": False, "parallel_tool_calls": parallel}
    with scripted(files.model, call + call, chat_template=templates.QWEN2_5) as api:
        assert len(api.post(CHAT, body).json()["choices"][0]["message"]["tool_calls"]) == count
