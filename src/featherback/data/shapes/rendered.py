"""Conversations that a chat template has already written as text: "<|im_start|>user\\nHello<|im_end|>\\n..."."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from featherback.core.naming import argument
from featherback.errors import FeatherbackError, excerpt


class _Style(NamedTuple):
    """How a family writes turns: expressions for what comes before a content, with the role, and after it."""

    before: str
    after: str


_ROLES = {"model": "assistant", "User": "user", "Assistant": "assistant"}
_NAMES = "system|user|assistant|tool|developer"
_STYLES = (
    _Style(r"<\|im_start\|>(\w+)\n", r"<\|im_end\|>"),
    _Style(r"<\|start_header_id\|>(\w+)<\|end_header_id\|>\n\n", r"<\|eot_id\|>|<\|eom_id\|>"),
    _Style(r"<\|start_of_role\|>(\w+)<\|end_of_role\|>", r"<\|end_of_text\|>"),
    _Style(r"<start_of_turn>(user|model)\n", r"<end_of_turn>"),
    _Style(rf"<\|({_NAMES})\|>\n?", r"</s>|<\|end\|>|<\|endoftext\|>"),
    _Style(r"<｜(User|Assistant)｜>", r"<｜end▁of▁sentence｜>"),
)
_BEGINNING = r"\s*(?:<s>|<bos>|<\|begin_of_text\|>|<\|endoftext\|>|<｜begin▁of▁sentence｜>)?\s*"
_HEADERS = tuple(re.compile(_BEGINNING + style.before) for style in _STYLES)
_INST = re.compile(_BEGINNING + r"\[INST\]")
_EXCHANGE = re.compile(r"\s*(?:<s>)?\s*\[INST\](.*?)\[/INST\](.*?)(?:</s>|(?=\[INST\])|\Z)", re.DOTALL)
_TAIL = re.compile(r"\s*(?:</s>|<eos>|<\|endoftext\|>|<\|end_of_text\|>)?\s*")
_SYSTEM = re.compile(r"\s*<<SYS>>\n?(.*?)\n?<</SYS>>\s*", re.DOTALL)


def is_rendered(text: Any) -> bool:
    """Whether a value is a text that begins as chat templates of known families do."""
    return isinstance(text, str) and any(header.match(text) for header in (*_HEADERS, _INST))


def check_not_rendered(text: str, column: str) -> None:
    """Raise FeatherbackError for a text that is a conversation, unless the user says how to read it."""
    if is_rendered(text):
        raise FeatherbackError(
            f"the column {excerpt(column)} holds conversations in the form of a chat template ({excerpt(text[:30])}). "
            f"To train on the answers in them: {argument('map', f'messages={column}')}. To train on everything as "
            f"plain text, in which control tokens are letters: {argument('map', f'text={column}')}."
        )


def turns_in(text: str) -> list[dict[str, Any]]:
    """Return the messages of a text that `is_rendered`. Raises FeatherbackError if some of it belongs to no message."""
    if _INST.match(text):
        return _exchanges(text)
    style = next(style for style, header in zip(_STYLES, _HEADERS, strict=True) if header.match(text))
    turn = re.compile(rf"{_BEGINNING}{style.before}(.*?)(?:(?:{style.after})\s*|(?={style.before})|\Z)", re.DOTALL)
    messages, at = [], 0
    while at < len(text) and (match := turn.match(text, at)):
        messages.append({"role": _ROLES.get(match[1], match[1]), "content": match[2]})
        at = match.end()
    _check_end(text, at)
    if messages[-1] == {"role": "assistant", "content": ""}:  # a prompt for an answer
        messages.pop()
    return messages


def _exchanges(text: str) -> list[dict[str, Any]]:
    """Return the messages of a conversation between [INST] and [/INST]."""
    messages, at = list[dict[str, Any]](), 0
    while at < len(text) and (match := _EXCHANGE.match(text, at)):
        asked = match[1]
        if not messages and (system := _SYSTEM.match(asked)):
            messages.append({"role": "system", "content": system[1]})
            asked = asked[system.end() :]
        messages.append({"role": "user", "content": asked.strip()})
        if match[2].strip():
            messages.append({"role": "assistant", "content": match[2].strip()})
        at = match.end()
    _check_end(text, at)
    return messages


def _check_end(text: str, at: int) -> None:
    if not _TAIL.fullmatch(text, at):
        raise FeatherbackError(f"the text {excerpt(text[at : at + 30])} belongs to no message of the conversation.")
