"""Requests of Continue and Open WebUI.

Continue: `@continuedev/openai-adapters` 1.37.0 (npm) wrote the bodies, with arguments of ours; the prompt of a
completion in an editor is written by hand. Open WebUI 0.12.4 (PyPI): `apply_model_params_to_body_openai` and
`convert_logit_bias_input_to_json` of its back end wrote the body with every setting of a model's page; those with
tools, a continued answer and a title are written by hand, after its code.
"""

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
ASKED = {"role": "user", "content": [{"type": "text", "text": "Read a.py"}]}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Continue, chat": (
        CHAT,
        {
            "model": "tiny", "max_tokens": 4096, "stream": True, "messages": [SYSTEM, ASKED],
            "stream_options": {"include_usage": True},
        },
    ),
    "Continue, chat without a stream": (
        CHAT,
        {"model": "tiny", "max_tokens": 64, "stream": False, "temperature": 0.5, "messages": [ASKED]},
    ),
    "Continue, agent": (
        CHAT,
        {
            "model": "tiny", "max_tokens": 4096, "stream": True, "tools": [READ],
            "messages": [
                ASKED,
                {"role": "assistant", "content": None, "tool_calls": [CALLED]},
                {"role": "tool", "tool_call_id": "call_1", "content": "print(1)"},
            ],
            "stream_options": {"include_usage": True},
        },
    ),
    "Continue, completion in the editor": (
        TEXT,
        {
            "model": "tiny", "prompt": "<|fim_prefix|>def f():\n    <|fim_suffix|>\n<|fim_middle|>", "max_tokens": 64,
            "stream": True, "temperature": 0.01, "stop": ["\n\n"],
        },
    ),
    "Open WebUI, chat": (
        CHAT,
        {
            "stream": True, "model": "tiny", "messages": [{"role": "user", "content": "Hello"}],
            "stream_options": {"include_usage": True}, "temperature": 0.8, "seed": -1, "top_p": 0.9, "top_k": 40,
            "min_p": 0.05, "max_tokens": -1, "frequency_penalty": 0.0, "presence_penalty": 0.0, "repeat_penalty": 1.1,
            "repeat_last_n": 64, "tfs_z": 1, "mirostat": 0, "mirostat_eta": 0.1, "mirostat_tau": 5.0, "num_ctx": 2048,
            "reasoning_effort": "medium", "logit_bias": {"5": -100}, "stop": ["###"],
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
    "Open WebUI, tools": (
        CHAT,
        {"stream": True, "model": "tiny", "messages": [SYSTEM, {"role": "user", "content": "Hi"}], "tools": [READ]},
    ),
    "Open WebUI, continued answer": (
        CHAT,
        {
            "stream": True, "model": "tiny", "continue_final_message": True, "add_generation_prompt": False,
            "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}],
        },
    ),
    "Open WebUI, title of a chat": (
        CHAT,
        {
            "model": "tiny", "stream": False,
            "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title for the chat history."}],
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
    body = {**BODIES["Continue, agent"][1], "stream": False, "stream_options": None, "parallel_tool_calls": parallel}
    with scripted(files.model, call + call, chat_template=templates.QWEN2_5) as api:
        assert len(api.post(CHAT, body).json()["choices"][0]["message"]["tool_calls"]) == count
