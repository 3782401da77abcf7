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
_TRAINED = {"weight": 1, "train": 1, "training": 1, "trainable": 1, "loss": 1, "loss_mask": 1, "masked": 0}
"""Fields that say whether an answer is trained, in this and in other programs -> the value that says it is."""
_KNOWN = {"role", "content", "from", "value", "tool_calls", "function_call", *_TAKEN, *REASONING_NAMES}


def turns(value: Any, key: str) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the messages in the form of "role" and "content", and their unused keys.

    Raises FeatherbackError, without a place, if `chat.check_messages` rejects them.
    """
    if not isinstance(value, list) or not value:
        raise FeatherbackError(f'"{key}" must be a non-empty list of {{"role": ..., "content": ...}}.')
    messages = [_message(turn, number) for number, turn in enumerate(value, 1)]
    check_messages(messages)
    extra = {
        key for turn in value for key in turn if not (key in _KNOWN or turn[key] is None or _says_trained(key, turn))
    }
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
    message = {name: turn[name] for name in _TAKEN if turn.get(name) is not None}
    message |= _weight(turn, number)
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


def _says_trained(key: str, turn: Mapping[str, Any]) -> bool:
    """Whether a field says that an answer is trained, or is not. A measured loss says neither."""
    return key == "weight" or (key in _TRAINED and turn[key] in (0, 1))


def _weight(turn: Mapping[str, Any], number: int) -> dict[str, Any]:
    said = [key for key in turn if turn[key] is not None and _says_trained(key, turn)]
    weights = [turn[key] if _TRAINED[key] else 1 - turn[key] for key in said]
    if any(weight != weights[0] for weight in weights[1:]):
        names = " and ".join(f'"{key}"' for key in said)
        raise FeatherbackError(f"Message {number} has {names}, which contradict each other. Remove one.")
    return {"weight": weights[0]} if said else {}


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
