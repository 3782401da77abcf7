"""Mail: an mbox file, or one message as .eml. A thread is a conversation.

The messages of a thread may stand anywhere in the file. Their texts wait in a temporary file until all are read.
"""

from __future__ import annotations

import email
import json
import re
import tempfile
from collections.abc import Iterator
from email.header import decode_header, make_header
from email.message import Message
from email.utils import parseaddr, parsedate_to_datetime
from hashlib import blake2b
from typing import IO, Any, ClassVar

from featherback.data.containers.letter import own_words
from featherback.data.containers.talk import Found, LeftOut, Said, Talk
from featherback.data.inputs import Input
from featherback.data.markup import text_of_html
from featherback.data.record_size import admits_raw

_MOST = 1 << 20
"""Bytes of a message that are read. Its text comes first; attachments follow."""
_BEGIN = re.compile(rb"From \S+.*\d{4}\s*$")
_FIELD = re.compile(rb"([A-Za-z][A-Za-z0-9-]*):[ \t]")
_FIELDS = {
    b"from",
    b"to",
    b"subject",
    b"date",
    b"message-id",
    b"received",
    b"return-path",
    b"delivered-to",
    b"mime-version",
}
_ID = re.compile(r"<[^<>\s]+>")
_LONGEST_FIELD = 10_000  # characters
_ID_FIELDS = ("Message-ID", "In-Reply-To", "References")
_KINDS = ("text/plain", "text/html")
_QUOTES = frozenset({"blockquote"})
_UNREADABLE = "unreadable message"


class Mail(Talk):
    title = "mail"
    suffixes: ClassVar[tuple[str, ...]] = (".mbox", ".eml")

    def recognises_content(self, begin: bytes) -> bool:
        first, _, rest = begin.partition(b"\n")
        return _has_fields(rest) if _BEGIN.match(first) else _has_fields(begin)

    def messages(self, data: Input) -> Iterator[tuple[str, bytes, bool]]:
        """Yield the place and the beginning of each message, and whether it is the whole message."""
        return messages_of(data)

    def said(self, data: Input) -> Iterator[Found]:
        threads = _Threads()
        with tempfile.TemporaryFile() as texts:
            places: list[tuple[int, float, int]] = []
            for where, raw, is_whole in self.messages(data):
                if not admits_raw(data.room, where, raw):
                    continue
                found = _read(raw, is_whole, where)
                if isinstance(found, LeftOut):
                    yield found
                    continue
                ids, said = found
                at = texts.tell()
                places.append((threads.of(ids, at), said["time"], at))
                texts.write(json.dumps(said).encode() + b"\n")
            for thread, _, at in sorted((threads.root(thread), time, at) for thread, time, at in places):
                texts.seek(at)
                yield _said(texts, thread)


CONTAINER = Mail()


def _said(texts: IO[bytes], thread: int) -> Said:
    values = json.loads(texts.readline())
    return Said(values["where"], values["name"], values["text"], None, thread, values["shown"])


def _has_fields(begin: bytes) -> bool:
    """Whether the first lines are header fields of a message, at least three of them usual ones."""
    names = set[bytes]()
    for line in begin.split(b"\n"):
        if found := _FIELD.match(line):
            names.add(found[1].lower())
        elif not line.startswith((b" ", b"\t")) or not names:
            break
    return len(names & _FIELDS) >= 3 and b"from" in names


def messages_of(data: Input) -> Iterator[tuple[str, bytes, bool]]:
    """Yield the place and the beginning of each message, and whether it is the whole message."""
    where, kept, size, is_blank = data.line(1), bytearray(), 0, True
    number, is_mbox, begins_line = 0, False, True
    for line in data.lines(1 << 16):
        number += begins_line
        if begins_line and is_blank and _BEGIN.match(line) and (is_mbox or number == 1):
            if size:
                yield where, bytes(kept), size <= _MOST
            where, kept, size, is_mbox = data.line(number), bytearray(), 0, True
        else:
            size += len(line)
            if size <= _MOST:
                kept += line[1:] if is_mbox and line.startswith(b">From ") else line
        is_blank = begins_line and not line.strip()
        begins_line = line.endswith(b"\n")
    if size:
        yield where, bytes(kept), size <= _MOST


def _read(raw: bytes, is_whole: bool, where: str) -> tuple[list[str], dict[str, Any]] | LeftOut:
    """Return the ids of a message, its own first, and who wrote what and when."""
    try:
        message = email.message_from_bytes(raw)
        text = _text(message, is_whole)
        shown, address = parseaddr(_field(message, "From"))
        ids = [found for name in _ID_FIELDS for found in _ID.findall(_field(message, name))]
    except Exception:  # the library has many for messages that break the rules, and one such is in every mailbox
        return LeftOut(_UNREADABLE)
    if text is None:
        return LeftOut(_UNREADABLE if is_whole else "message longer than 1 MB")
    words = own_words(text)
    if not words:
        return LeftOut("empty message")
    name = address.lower() or shown or "unknown"
    return ids, {"where": where, "name": name, "shown": shown or name, "text": words, "time": _time(message)}


def _field(message: Message, name: str) -> str:
    """Return a header field as text. A long one is cut, because reading it takes more than linear time."""
    given = str(message.get(name) or "")[:_LONGEST_FIELD]
    return str(make_header(decode_header(given)))


def _time(message: Message) -> float:
    try:
        return parsedate_to_datetime(_field(message, "Date")).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _text(message: Message, is_whole: bool) -> str | None:
    """Return the text of a message; None if it has none, or is cut within it."""
    parts = [part for part in message.walk() if not part.is_multipart()]
    texts = [part for part in parts if part.get_content_disposition() != "attachment"]
    kinds = (part for kind in _KINDS for part in texts if part.get_content_type() == kind)
    part = next(kinds, None)
    if part is None or (not is_whole and part is parts[-1]):
        return None
    payload = part.get_payload(decode=True)
    assert isinstance(payload, bytes)
    try:
        text = payload.decode(part.get_content_charset() or "utf-8")
    except (LookupError, ValueError):
        text = payload.decode("cp1252", "replace")
    text = text.replace("\r\n", "\n")
    return text_of_html(text, _QUOTES) if part.get_content_subtype() == "html" else text


class _Threads:
    """Groups messages that name each other. Ids are kept as numbers, which take less memory."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}

    def of(self, ids: list[str], otherwise: int) -> int:
        """Return a number for a message with these ids; they are all in its thread."""
        numbers = [
            int.from_bytes(blake2b(each.encode("utf-8", "replace"), digest_size=8).digest(), "big") for each in ids
        ]
        first = numbers[0] if numbers else -1 - otherwise
        for number in numbers[1:]:
            one, other = self.root(first), self.root(number)
            if one != other:
                self._above[one] = other
        return first

    def root(self, number: int) -> int:
        """Return the number that all messages of a thread share."""
        path = []
        while (above := self._above.get(number)) is not None:
            path.append(number)
            number = above
        for each in path:
            self._above[each] = number
        return number
