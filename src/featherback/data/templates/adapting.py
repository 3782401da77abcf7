"""Messages in the form that a template reads: its roles, its name for reasoning, and its ids of tool calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from featherback.data.report import SYNONYMS
from featherback.data.templates.marks import Message, Messages
from featherback.errors import FeatherbackError

REASONING = "reasoning_content"
"""The field of a message that holds the reasoning of an answer."""
REASONING_NAMES = (REASONING, "reasoning", "thinking")
"""Names of that field in data, requests and templates."""
_NINE = re.compile(r"length\s*(?:!=|==)\s*9\b")
_NINE_CHARACTERS = re.compile(r"[A-Za-z0-9]{9}")


class Adaptation:
    """Puts messages into the form that a template reads."""

    def __init__(self, template: str) -> None:
        self.synonyms = {
            role: other for role, other in SYNONYMS.items() if not re.search(f"[\"']{role}[\"']", template)
        }
        """Roles that the template does not know, with their other names."""
        self._reasoning = next((name for name in REASONING_NAMES if re.search(rf"\b{name}\b", template)), None)
        self._in_content = self._reasoning is None and "</think>" in template
        self._nine = _NINE.search(template) is not None

    def messages(self, messages: Messages) -> Messages:
        """Return the messages with the names and ids that the template expects."""
        found, called = [], list[str]()
        for i, message in enumerate(messages):
            adapted = {key: message[key] for key in message if key != "weight"}
            adapted["role"] = self.synonyms.get(message["role"], message["role"])
            if reasoning := adapted.pop(REASONING, ""):
                adapted |= self._reasoned(reasoning, message["content"])
            if self._nine and (calls := message.get("tool_calls")):
                adapted["tool_calls"] = [
                    {**call, "id": _nine(str(call.get("id") or f"{i}.{k}"))} for k, call in enumerate(calls)
                ]
                called = [call["id"] for call in adapted["tool_calls"]]
            elif self._nine and message["role"] == "tool":
                answered = called.pop(0) if called else str(i)
                adapted["tool_call_id"] = _nine(message.get("tool_call_id") or answered)
            found.append(adapted)
        return found

    def _reasoned(self, reasoning: str, content: str) -> Mapping[str, Any]:
        if self._in_content:  # the template looks for it there
            return {"content": f"<think>\n{reasoning}\n</think>\n\n{content}"}
        return {self._reasoning or REASONING: reasoning}


def reasoning_of(message: Message, where: str) -> dict[str, str]:
    """Return the reasoning of a message, by whatever name, as the field REASONING. Empty if it has none."""
    found = {name: message[name] for name in REASONING_NAMES if message.get(name)}
    texts = list(found.values())
    if any(text != texts[0] for text in texts):
        raise FeatherbackError(f"{' and '.join(map(repr, found))} of {where} differ. Remove one of them.")
    return {REASONING: texts[0]} if texts else {}


def _nine(name: str) -> str:
    """Return an id of nine letters or digits: the same for the same name, which is kept if it is one already."""
    if _NINE_CHARACTERS.fullmatch(name):
        return name
    import hashlib  # rarely, because it loads OpenSSL: 3 MB

    return hashlib.sha256(name.encode()).hexdigest()[:9]
