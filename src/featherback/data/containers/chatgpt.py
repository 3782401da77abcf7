"""The conversations.json of ChatGPT's data export. The branch that the user saw last is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from featherback.data.containers.talk import LeftOut
from featherback.data.containers.tree import Conversations, Turn, path_to

_BEGIN = re.compile(rb'\[\s*\{.*?"mapping"\s*:\s*\{', re.DOTALL)
_TEXTS = ("text", "multimodal_text")
_THOUGHTS = ("thoughts", "reasoning_recap")


class ChatGpt(Conversations):
    title = "conversations of ChatGPT"

    def recognises_content(self, begin: bytes) -> bool:
        return _BEGIN.match(begin) is not None

    def turns(self, row: Mapping[str, Any]) -> Iterator[Turn | LeftOut]:
        nodes = {key: _map(node) for key, node in _map(row.get("mapping")).items()}
        leaf = row.get("current_node")
        if not isinstance(leaf, str) or leaf not in nodes:
            leaf = next((key for key in reversed(nodes) if not nodes[key].get("children")), None)
        for node in path_to(leaf, nodes, "parent"):
            if message := _map(node.get("message")):
                yield from _turn(message)


CONTAINER = ChatGpt()


def _turn(message: Mapping[str, Any]) -> Iterator[Turn | LeftOut]:
    author, content, metadata = (_map(message.get(key)) for key in ("author", "content", "metadata"))
    role, kind = author.get("role"), content.get("content_type")
    given = content.get("parts")
    parts = given if isinstance(given, list) else []
    texts = [part for part in parts if isinstance(part, str)]
    if role == "system" or metadata.get("is_visually_hidden_from_conversation") or kind == "user_editable_context":
        if any(texts) or kind not in _TEXTS:  # every conversation begins with an empty one
            yield LeftOut("system message")
    elif kind in _THOUGHTS:
        yield LeftOut("thought")
    elif role not in ("user", "assistant") or kind not in _TEXTS or message.get("recipient", "all") != "all":
        yield LeftOut("tool message")
    else:
        yield from [LeftOut("attachment")] * (len(parts) - len(texts))
        yield role, "\n".join(texts)


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
