"""Split what a chat template writes for tools into pieces, as `chat_parts` does for messages.

The pieces fit templates that list the tools behind the system message, and write a call as a JSON object with a name
and arguments, and results as messages: those of Qwen, Hermes and their relatives.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from featherback.data.templates.chat import ChatTemplate
from featherback.errors import FeatherbackError

S, A, B, N1, N2, R1, R2 = "Qxsystem", "Qxfirst", "Qxanswer", "Qxtool1", "Qxtool2", "Qxresult1", "Qxresult2"
FIRST, SYSTEM = {"role": "user", "content": A}, {"role": "system", "content": S}


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    return {"type": "function", "function": {"name": name, "description": "Qxwhat", "parameters": parameters}}


def _call(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": {"a": name.lower()}}}


TOOLS = [_tool(N1), _tool(N2)]
CALLS = {"role": "assistant", "content": "", "tool_calls": [_call(N1), _call(N2)]}
_ARGUMENTS = [json.dumps({"a": name.lower()}) for name in (N1, N2)]
RESULTS = [{"role": "tool", "name": N1, "content": R1}, {"role": "tool", "name": N2, "content": R2}]


_LONGER: list[dict[str, Any]] = [
    *(FIRST, {**CALLS, "content": B, "tool_calls": [_call(N1)]}, RESULTS[0]),
    *({"role": "assistant", "content": B}, {"role": "user", "content": S}),
]
"""A conversation with one tool and one call, which goes on after it."""


@dataclass(frozen=True)
class ToolParts:
    """The text around tools, their calls and their results."""

    alone: str
    """From the beginning of a conversation without a system message to the first tool."""
    listing: tuple[str, str, str]
    """Between the system message and the first tool; between tools; between the last tool and the end of the system
    message."""
    is_whole: bool
    """The whole tool is written, and not only its function."""
    after_text: str
    """Between the text of an answer and its calls."""
    call: tuple[str, str, str, str]
    """Before the name of the first call; between name and arguments; between calls; after the last arguments."""
    result: tuple[str, str, str]
    """Before the first result; between results; after the last one."""


def tool_parts(
    template: ChatTemplate, system: tuple[str, str], user: tuple[str, str], assistant: tuple[str, str], answer: str
) -> ToolParts | None:
    """Split a template; the other arguments are those of `ChatParts`. Returns None if it does more than that."""
    try:
        listing, is_whole = _listing(template, [SYSTEM, FIRST], system[0] + S, system[1] + A + user[1] + answer)
        alone, _ = _listing(template, [FIRST], "", system[1] + A + user[1] + answer)
        if alone[1:] != listing[1:]:
            return None
        first = system[0] + S + listing[0] + _written(is_whole, 0) + listing[1] + _written(is_whole, 1) + listing[2]
        head = first + system[1] + A + user[1] + assistant[0]
        called = _rest(template, [SYSTEM, FIRST, CALLS, *RESULTS], head)
        before, (mid, between, again), rest = _calls(called)
        ended = _rest(template, [SYSTEM, FIRST, CALLS], head, ends=False)
        closing = _calls(ended)[2]
        if again != mid or not closing.endswith(assistant[1]) or not rest.startswith(closing):
            return None
        opened, among, tail = _cut(rest[len(closing) :], R1, R2)
        if not tail.endswith(answer):
            return None
        text = _rest(template, [SYSTEM, FIRST, {**CALLS, "content": B}, *RESULTS], head)
        after_text = text.removeprefix(B).removesuffix(called)
        if text != B + after_text + called:
            return None
    except (FeatherbackError, ValueError):
        return None
    close = closing.removesuffix(assistant[1])
    results = opened, among, tail.removesuffix(answer)
    parts = ToolParts(alone[0], listing, is_whole, after_text, (before, mid, between, close), results)
    said = assistant[0] + B + after_text + before + N1 + mid + _ARGUMENTS[0] + closing
    told = opened + R1 + results[2] + assistant[0] + B + assistant[1] + user[0] + S + user[1]
    whole = alone[0] + _written(is_whole, 0) + listing[2] + system[1] + A + user[1] + said + told + answer
    return parts if template.render(_LONGER, tools=TOOLS[:1], add_generation_prompt=True) == whole else None


def _listing(
    template: ChatTemplate, messages: Sequence[dict[str, Any]], start: str, end: str
) -> tuple[tuple[str, str, str], bool]:
    """Return the text before, between and after the tools, and whether they are written whole."""
    text = template.render(messages, tools=TOOLS, add_generation_prompt=True)
    if not (text.startswith(start) and text.endswith(end)):
        raise ValueError("tools change the text around messages")
    text = text[len(start) : len(text) - len(end)]
    for is_whole in (True, False):
        written = [_written(is_whole, number) for number in (0, 1)]
        if all(each in text for each in written):
            return _cut(text, *written), is_whole
    raise ValueError("tools are written in another form than JSON")


def _written(is_whole: bool, number: int) -> str:
    return json.dumps(TOOLS[number] if is_whole else TOOLS[number]["function"])


def _rest(template: ChatTemplate, messages: Sequence[dict[str, Any]], head: str, ends: bool = True) -> str:
    text = template.render(messages, tools=TOOLS, add_generation_prompt=ends)
    if not text.startswith(head):
        raise ValueError("calls change the text before them")
    return text[len(head) :]


def _calls(text: str) -> tuple[str, tuple[str, str, str], str]:
    """Return the text before the first name, the texts between names and arguments, and what follows."""
    parts = []
    for piece in (N1, _ARGUMENTS[0], N2, _ARGUMENTS[1]):
        before, found, text = text.partition(piece)
        if not found:
            raise ValueError("calls are written in another form")
        parts.append(before)
    return parts[0], (parts[1], parts[2], parts[3]), text


def _cut(text: str, one: str, two: str) -> tuple[str, str, str]:
    """Return the text before, between and after two pieces. Raises ValueError unless each occurs once, in order."""
    before, rest = text.split(one)
    between, after = rest.split(two)
    return before, between, after
