"""What tests of the API ask and read."""

from __future__ import annotations

import json
from typing import Any

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
