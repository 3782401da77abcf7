"""Marks around the contents of messages, which show where a template writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from featherback.data.templates.renderer import Answers, RenderingError
from featherback.data.tokenizers.tokenizer import Span

Message = Mapping[str, Any]
Messages = Sequence[Message]

# A mark is OPEN number CLOSE, at the start and at the end of a content. Unicode reserves these two characters for
# internal use.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
_MARK = re.compile(f"{OPEN}(\\d+){CLOSE}")


def with_marks(messages: Messages, add_generation_prompt: bool) -> tuple[tuple[Messages, bool], tuple[Messages, bool]]:
    """Return the conversation twice: unchanged, and with marks around each content."""
    marked = []
    for i, message in enumerate(messages):
        calls = message.get("tool_calls", ())
        more: dict[str, Any] = {"tool_calls": [_marked_call(call, i) for call in calls]} if calls else {}
        if message["content"] or not calls:  # templates test whether a call has a content
            more["content"] = _marked_text(message["content"], i)
        marked.append({**message, **more})
    return (messages, add_generation_prompt), (marked, add_generation_prompt)


def unmarked(answers: Answers, count: int) -> tuple[str, list[list[Span]] | None]:
    """Return the rendering and the places of the contents of `count` messages (none, one or several each).

    The places are None if the marks change what the template does.
    """
    plain, rendered = answers
    true = text_of(plain)
    if isinstance(rendered, RenderingError):
        return true, None
    spans: list[list[Span]] = [[] for _ in range(count)]
    opened: dict[int, int] = {}
    removed = 0
    for mark in _MARK.finditer(rendered):
        number, place = int(mark[1]), mark.start() - removed
        removed += mark.end() - mark.start()
        if number % 2 == 0:
            opened[number] = place
        elif number - 1 in opened and number < 2 * count:
            spans[number // 2].append((opened.pop(number - 1), place))
        else:
            return true, None
    if opened or _MARK.sub("", rendered) != true:
        return true, None
    return true, spans


def text_of(rendered: str | RenderingError) -> str:
    """Return a rendering, or raise its error."""
    if isinstance(rendered, RenderingError):
        raise rendered
    return rendered


def leaves(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value, except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)


def spellings(text: str) -> tuple[str, ...]:
    """Return a text unchanged and escaped as in JSON."""
    return text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]


def _marked_text(text: str, i: int) -> str:
    core = text.strip()  # marks are inside surrounding white space, so that a template may trim it
    at = text.find(core) if core else 0
    before, after = text[:at], text[at + len(core) :]
    return f"{before}{OPEN}{2 * i}{CLOSE}{core}{OPEN}{2 * i + 1}{CLOSE}{after}"


def _marked_call(call: Mapping[str, Any], i: int) -> Mapping[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "name": _marked_text(function["name"], i)}}
