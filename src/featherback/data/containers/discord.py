"""The JSON of DiscordChatExporter: one channel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from featherback.data.containers.json_lists import message_records
from featherback.data.containers.talk import Found, LeftOut, Said, Talk, seconds
from featherback.data.example import Bad
from featherback.data.inputs import Input

_CHANNEL = re.compile(rb'\{\s*"guild"\s*:\s*\{.*?"channel"\s*:\s*\{', re.DOTALL)
_WRITTEN = ("Default", "Reply")


class Discord(Talk):
    title = "channel of Discord"

    def recognises_content(self, begin: bytes) -> bool:
        return _CHANNEL.match(begin) is not None

    def said(self, data: Input) -> Iterator[Found]:
        for chat, record in message_records(data):
            yield record if isinstance(record, Bad) else _message(record.values, record.where, chat)


CONTAINER = Discord()


def _message(row: Mapping[str, Any], where: str, chat: int) -> Found:
    if row.get("type") not in _WRITTEN:
        return LeftOut("system message")
    author, text = row.get("author"), row.get("content")
    if not isinstance(author, Mapping) or not isinstance(author.get("name"), str):
        return Bad(where, 'the message has no "author" with a "name".')
    if not isinstance(text, str) or not text.strip():
        return LeftOut("attachment")
    time = seconds(row.get("timestamp"))
    return Said(where, author["name"], text.strip(), time, chat, str(author.get("nickname") or ""))
