"""The conversations.json of Claude's data export."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from featherback.data.containers.talk import LeftOut
from featherback.data.containers.tree import Conversations, Turn, path_to

_BEGIN = re.compile(rb'\[\s*\{(?=[^{]*"uuid"\s*:).*?"chat_messages"\s*:\s*\[', re.DOTALL)
_ROLES = {"human": "user", "assistant": "assistant"}
_KINDS = {"thinking": "thought", "tool_use": "tool message", "tool_result": "tool message"}


class Claude(Conversations):
    title = "conversations of Claude"

    def recognises_content(self, begin: bytes) -> bool:
        return _BEGIN.match(begin) is not None

    def turns(self, row: Mapping[str, Any]) -> Iterator[Turn | LeftOut]:
        given = row.get("chat_messages")
        messages = [each for each in given if isinstance(each, Mapping)] if isinstance(given, list) else []
        if messages and all(isinstance(each.get("uuid"), str) and "parent_message_uuid" in each for each in messages):
            nodes = {each["uuid"]: each for each in messages}
            leaf = row.get("current_leaf_message_uuid")
            messages = path_to(
                leaf if isinstance(leaf, str) and leaf in nodes else messages[-1]["uuid"], nodes, "parent_message_uuid"
            )
        for message in messages:
            if (role := _ROLES.get(str(message.get("sender")))) is None:
                yield LeftOut("system message")
            else:
                yield from _turn(role, message)


CONTAINER = Claude()


def _turn(role: str, message: Mapping[str, Any]) -> Iterator[Turn | LeftOut]:
    blocks = [each for each in message.get("content") or () if isinstance(each, Mapping)]
    texts = [each["text"] for each in blocks if each.get("type") == "text" and isinstance(each.get("text"), str)]
    if not blocks and isinstance(message.get("text"), str):  # older exports
        texts = [message["text"]]
    yield from (
        LeftOut(_KINDS.get(str(each.get("type")), "attachment")) for each in blocks if each.get("type") != "text"
    )
    attached = [each for each in message.get("attachments") or () if isinstance(each, Mapping)]
    pasted = [each["extracted_content"] for each in attached if isinstance(each.get("extracted_content"), str)]
    pasted = [each for each in pasted if each.strip()]
    missing = len(attached) - len(pasted) + len(message.get("files") or ())
    yield from [LeftOut("attachment")] * missing
    yield role, "\n\n".join(each for each in (*texts, *pasted) if each.strip())
