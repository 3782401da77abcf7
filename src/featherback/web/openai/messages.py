"""Messages and tools of a chat request, in the form that chat templates read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from featherback.data.shapes.tools import calls_of, tools_of
from featherback.data.templates.adapting import reasoning_of
from featherback.data.templates.chat import check_messages
from featherback.data.templates.renderer import RESERVED
from featherback.errors import FeatherbackError, excerpt
from featherback.web.openai.fields import Fields
from featherback.web.refusal import RefusedError

_COPIED = ("name", "tool_call_id")
_MOST_MESSAGES = 10_000
_MOST_TOOLS = 128
"""As at OpenAI. Each one costs a rendering of the others, which shows that the template writes it."""


def messages_of(fields: Fields, capacity: int) -> list[dict[str, Any]]:
    """Return the messages of a request, each of which takes at least one of `capacity` tokens. Raises RefusedError."""
    given = fields.take("messages")
    if not isinstance(given, list) or not given or len(given) > _MOST_MESSAGES:
        fields.refuse("messages", 'must be a list of messages: [{"role": "user", "content": "Hello"}].')
    if len(given) > capacity:
        fields.refuse("messages", f"has {len(given)} messages; at most {capacity} fit.", "context_length_exceeded")
    found = [_message(message, number) for number, message in enumerate(given)]
    try:
        check_messages(found)
    except FeatherbackError as error:
        raise RefusedError(str(error), param="messages") from None
    return found


Tools = Sequence[Mapping[str, Any]]


def tools_in(fields: Fields) -> tuple[Tools | None, Tools]:
    """Return the tools of which the prompt tells, None if there are none; and those of which one must be called."""
    tools, choice = fields.take("tools"), fields.take("tool_choice", "auto")
    try:
        found = tools_of({"tools": tools})
    except FeatherbackError as error:
        raise RefusedError(str(error), param="tools") from None
    if found and len(found) > _MOST_TOOLS:
        fields.refuse("tools", f"has {len(found)} functions; at most {_MOST_TOOLS} are accepted.")
    if choice == "none":
        return None, ()
    if choice == "auto":
        return found, ()
    if choice == "required":
        forced = found or ()
    elif isinstance(choice, dict) and choice.get("type") == "function":
        name = (choice.get("function") or choice).get("name") if isinstance(choice.get("function", {}), dict) else None
        forced = [each for each in found or () if _function(each).get("name") == name]
    else:
        known = '"auto", "none", "required", {"type": "function", "function": {"name": ...}}'
        fields.refuse("tool_choice", f"is {excerpt(choice)}; expected one of: {known}.")
    if not forced:
        fields.refuse("tool_choice", f"is {excerpt(choice)}, but the request has no such tool.")
    return found, forced


def schema_of_call(tools: Tools) -> Mapping[str, Any]:
    """Return the JSON schema of a call of one of the tools. Raises RefusedError."""
    shared: dict[str, dict[str, Any]] = {}
    calls = []
    for function in map(_function, tools):
        arguments = dict(function.get("parameters") or {"type": "object"})
        for key in ("$defs", "definitions"):  # to which references lead from the schema's beginning
            for name, definition in (arguments.pop(key, None) or {}).items():
                if shared.setdefault(key, {}).setdefault(name, definition) != definition:
                    raise RefusedError(f"Two tools define {excerpt(name)} in {key}, differently.", param="tools")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function.get("name")}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), **shared}


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = tool.get("function", tool)
    return found


def variables_of(fields: Fields) -> Mapping[str, Any]:
    """Return the values that a request has for its chat template, which ignores those that it does not know."""
    given = dict(fields.object("chat_template_kwargs").all)
    if (effort := fields.take("reasoning_effort")) is not None:
        given.setdefault("reasoning_effort", effort)
    if known := RESERVED & given.keys():
        fields.refuse("chat_template_kwargs", f"has {excerpt(min(known))}, which the request has elsewhere.")
    return given


def continues_of(fields: Fields, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the answer continues the last message."""
    continues, last = fields.flag("continue_final_message"), messages[-1]
    begins = fields.take("add_generation_prompt", not continues)
    if begins is continues or not isinstance(begins, bool):
        fields.refuse("add_generation_prompt", "must be the opposite of continue_final_message.")
    if continues and (last["role"] != "assistant" or not last["content"] or last.get("tool_calls")):
        fields.refuse("continue_final_message", "needs a last message of the assistant that has a text and no calls.")
    return continues


def _message(message: Any, number: int) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(message, dict):
        raise RefusedError(f'"{where}" must be an object with "role" and "content".', param=where)
    found = {key: message[key] for key in _COPIED if message.get(key) is not None}
    try:
        found |= reasoning_of(message, where)
    except FeatherbackError as error:
        raise RefusedError(str(error), param=where) from None
    found["role"] = message.get("role")
    found["content"] = _content(message.get("content"), where, optional=bool(message.get("tool_calls")))
    if not isinstance(found["role"], str):
        raise RefusedError(f'"{where}.role" must be a string, such as "user".', param=f"{where}.role")
    if calls := message.get("tool_calls"):
        try:
            found["tool_calls"] = calls_of(calls, where)
        except FeatherbackError as error:
            raise RefusedError(str(error), param=f"{where}.tool_calls") from None
    return found


def _content(content: Any, where: str, optional: bool) -> str:
    """The text of a message, which may be a list of parts."""
    param = f"{where}.content"
    if isinstance(content, str):
        return content
    if content is None and optional:
        return ""
    if not isinstance(content, list):
        raise RefusedError(f'"{param}" must be a string.', param=param)
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise RefusedError(
                f'"{param}" has a part of the type {excerpt(kind)}; the model reads only text: '
                '{"type": "text", "text": ...}.',
                param=param,
            )
        texts.append(part["text"])
    return "".join(texts)
