"""Chats of Signal: the data.json of signal-export, and the text and JSON of sigtop. The owner is "Me" or "You"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from featherback.data.containers.json_array import CONTAINER as ARRAY
from featherback.data.containers.jsonl import CONTAINER as LINES
from featherback.data.containers.talk import Found, LeftOut, Lines, Said, Talk, seconds, text_lines
from featherback.data.example import Bad
from featherback.data.inputs import Input

_EXPORTED = re.compile(rb'\{"date": "[^"]{10,40}", "sender": "(?:[^"\\]|\\.)*", "body": "')
_STORED = re.compile(rb'\[\s*\{(?=[^\n]*"conversationId"\s*:)(?=[^\n]*"sent_at"\s*:)')
_TEXT = re.compile(rb"Conversation: [^\n]*\n\r?\n(?:From: [^\n]*\n)?Type: [a-z-]+\r?\nSent: ")
_FIELD = re.compile(r"(From|Type|Sent|Received|Attachment|Reaction|Edited): (.*)")
_BEGIN = re.compile(r"(?:From: .+|Type: [a-z-]+)")
_DELETED = "deleted message"


class Signal(Talk):
    title = "chat of Signal"

    def recognises_content(self, begin: bytes) -> bool:
        return any(form.match(begin) for form in (_EXPORTED, _STORED, _TEXT))

    def said(self, data: Input) -> Iterator[Found]:
        begin = data.head().removeprefix(b"\xef\xbb\xbf").lstrip()
        if _TEXT.match(begin):
            yield from _written(data)
            return
        reader, message = (ARRAY, _stored) if begin.startswith(b"[") else (LINES, _exported)
        for record in reader.read(data):
            yield record if isinstance(record, Bad) else message(record.values, record.where)


CONTAINER = Signal()


def _exported(row: Mapping[str, Any], where: str) -> Found:
    """A line of signal-export's data.json."""
    if row.get("deleted"):
        return LeftOut(_DELETED)
    if row.get("call"):
        return LeftOut("system message")
    text = row.get("body")
    if not isinstance(text, str) or not text.strip():
        return LeftOut("attachment")
    return Said(where, str(row.get("sender")), text.strip(), seconds(row.get("date")))


def _stored(row: Mapping[str, Any], where: str) -> Found:
    """An object of Signal's database, as sigtop writes it."""
    kind, text = row.get("type"), row.get("body")
    if row.get("deletedForEveryone"):
        return LeftOut(_DELETED)
    if kind not in ("incoming", "outgoing"):
        return LeftOut("system message")
    if not isinstance(text, str) or not text.strip():
        return LeftOut("attachment")
    source = row.get("sourceServiceId") or row.get("sourceUuid") or row.get("source") or row.get("conversationId")
    sent = row.get("sent_at")
    time = sent / 1000 if isinstance(sent, (int, float)) else None
    return Said(where, "You" if kind == "outgoing" else str(source), text.strip(), time)


def _written(data: Input) -> Iterator[Found]:
    """The text of sigtop: for each message its fields, an empty line, and the text before another empty line."""
    fields: dict[str, str] | None = None
    body = Lines("")
    in_body = False
    for where, line in text_lines(data):
        if isinstance(line, Bad):
            yield line
        elif _BEGIN.fullmatch(line) and (fields is None or (in_body and body.lines[-1:] in ([], [""]))):
            if fields is not None:
                yield _of_fields(fields, body)
            fields, body, in_body = {}, Lines(where), False
            _take(line, fields)
        elif fields is not None and in_body:
            body.add(line)
        elif fields is not None:
            in_body = not line
            _take(line, fields)
    if fields is not None:
        yield _of_fields(fields, body)


def _take(line: str, fields: dict[str, str]) -> None:
    if found := _FIELD.fullmatch(line):
        fields.setdefault(found[1], found[2])


def _of_fields(fields: dict[str, str], body: Lines) -> Found:
    if fields.get("Type") not in ("incoming", "outgoing"):
        return LeftOut("system message")
    lines = body.lines
    if "Edited" in fields:  # the newest version is the first one
        ends = (at for at, line in enumerate(lines) if at and line.startswith("| Version: "))
        lines = [line.removeprefix("|").removeprefix(" ") for line in lines[: next(ends, len(lines))]]
        lines = lines[lines.index("") :] if "" in lines else []
    text = "\n".join(line for line in lines if not line.startswith(">")).strip()
    if not text:
        return LeftOut("attachment")
    try:
        time = parsedate_to_datetime(fields.get("Sent", "")).timestamp()
    except (ValueError, TypeError, OverflowError):
        time = None
    return Said(body.where, fields.get("From", "unknown"), text, time)
