"""The result.json of Telegram Desktop: one chat, or all chats of an account."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from featherback.data.containers.json_lists import message_records
from featherback.data.containers.talk import Found, LeftOut, Said, Talk, seconds
from featherback.data.example import Bad
from featherback.data.inputs import Input

_CHAT = re.compile(
    rb'"type"\s*:\s*"(?:saved_messages|personal_chat|bot_chat|private_group|private_supergroup|public_supergroup|'
    rb'private_channel|public_channel)"'
)
_ACCOUNT = re.compile(rb'\{\s*"about"\s*:\s*"[^"]*Telegram')


class Telegram(Talk):
    title = "chats of Telegram"

    def recognises_content(self, begin: bytes) -> bool:
        return begin.startswith(b"{") and bool(_CHAT.search(begin) or _ACCOUNT.match(begin))

    def said(self, data: Input) -> Iterator[Found]:
        for chat, record in message_records(data):
            yield record if isinstance(record, Bad) else _message(record.values, record.where, chat)


CONTAINER = Telegram()


def _message(row: Mapping[str, Any], where: str, chat: int) -> Found:
    if row.get("type") != "message":
        return LeftOut("system message")
    if row.get("forwarded_from") or row.get("via_bot"):
        return LeftOut("forwarded message")
    text = _text(row.get("text")).strip()
    if not text:
        return LeftOut("attachment")
    name = row.get("from") or row.get("from_id") or "Deleted Account"
    return Said(where, str(name), text, seconds(row.get("date_unixtime"), row.get("date")), chat)


def _text(text: Any) -> str:
    """Return the text of a message: a string, or a list of strings and of objects for links and formats."""
    parts = text if isinstance(text, list) else [text]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return "".join(each for each in texts if isinstance(each, str))
