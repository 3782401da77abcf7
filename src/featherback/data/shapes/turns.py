"""Read lists of messages in the formats of common data sets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from featherback.data.containers.json_text import kind
from featherback.data.shapes.tools import calls_of
from featherback.data.templates.adapting import REASONING_NAMES, reasoning_of
from featherback.data.templates.chat import check_messages
from featherback.errors import FeatherbackError, excerpt

_ROLES = {
    **dict.fromkeys(("ai", "bot", "chatgpt", "gpt", "model"), "assistant"),
    **dict.fromkeys(("function", "function_response", "observation"), "tool"),
}
"""Other names of roles that no chat template uses for something else."""
_SHAREGPT = {"human": "user", **_ROLES}
_CALL = "function_call"  # the role of a function call in ShareGPT
_TAKEN = ("name", "tool_call_id")
"""Fields of a message that a template may use besides role, content, reasoning and calls."""
_KNOWN = {"role", "content", "from", "value", "tool_calls", "function_call", "weight", *_TAKEN, *REASONING_NAMES}


def turns(value: Any, key: str) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the messages in the form of "role" and "content", and their unused keys.

    Raises FeatherbackError, without a place, if `chat.check_messages` rejects them.
    """
    if not isinstance(value, list) or not value:
        raise FeatherbackError(f'"{key}" must be a non-empty list of {{"role": ..., "content": ...}}.')
    messages = [_message(turn, number) for number, turn in enumerate(value, 1)]
    check_messages(messages)
    extra = {key for turn in value for key in turn if key not in _KNOWN and turn[key] is not None}
    return messages, tuple(f"{key}[].{name}" for name in sorted(extra))


def conversation(messages: list[dict[str, Any]], system: str | None) -> list[dict[str, Any]]:
    """Put a separate "system" text in front of the messages."""
    if system is None:
        return messages
    if messages[0]["role"] == "system":
        raise FeatherbackError('there are two system messages: "system", and the first of the messages. Remove one.')
    return [{"role": "system", "content": system}, *messages]


def _message(turn: Any, number: int) -> dict[str, Any]:
    if not isinstance(turn, Mapping):
        raise FeatherbackError(f'Message {number} must be an object with "role" and "content".')
    message = {name: turn[name] for name in (*_TAKEN, "weight") if turn.get(name) is not None}
    message |= reasoning_of(turn, f"message {number}")
    if "from" in turn and "role" not in turn:
        role, content = turn["from"], turn.get("value")
        if role == _CALL:
            return {**message, "role": "assistant", "content": "", "tool_calls": _spelled_call(content, number)}
        role = _SHAREGPT.get(role, role) if isinstance(role, str) else role
    else:
        for name in ("role", "content"):
            if name not in turn and not (name == "content" and _calls(turn)):
                raise FeatherbackError(f'Message {number} has no "{name}".')
        role, content = turn["role"], turn.get("content")
        role = _ROLES.get(role, role) if isinstance(role, str) else role
    if calls := _calls(turn):
        message["tool_calls"] = calls_of(calls, f"message {number}")
    return {**message, "role": role, "content": _content(content, number, bool(calls))}


def _calls(turn: Mapping[str, Any]) -> Any:
    calls = turn.get("tool_calls")
    return calls or ([turn["function_call"]] if turn.get("function_call") else None)


def _spelled_call(content: Any, number: int) -> list[dict[str, Any]]:
    try:
        call = json.loads(content) if isinstance(content, str) else content
    except (ValueError, RecursionError) as error:
        raise FeatherbackError(f"The function call of message {number} is not valid JSON: {error}.") from None
    return calls_of(call if isinstance(call, list) else [call], f"message {number}")


def _content(content: Any, number: int, calls: bool) -> Any:
    """Return a content as text. Other types than text and lists of parts are left for `check_messages` to reject."""
    if content is None and calls:
        return ""
    if not isinstance(content, list):
        return content
    texts = []
    for at, part in enumerate(content, 1):
        form = part.get("type", "text") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            texts.append(part)
        elif form == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            what = f"of type {excerpt(form)}" if form not in (None, "text") else kind(part)
            raise FeatherbackError(f"Part {at} of message {number} is {what}; only text can be trained on.")
    return "".join(texts)
