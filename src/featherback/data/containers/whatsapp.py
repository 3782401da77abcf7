"""Chats that WhatsApp exports as text, and the Markdown of signal-export, which looks the same.

A message begins with its time, as the phone's language writes it: "[24.12.23, 18:05:12] Anna: Hi" on iOS, and
"12/24/23, 6:05 PM - Anna: Hi" on Android. Other lines continue the message before them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import pairwise

from featherback.data.containers.talk import Found, LeftOut, Lines, Said, Talk, plain, text_lines
from featherback.data.example import Bad
from featherback.data.inputs import Input

_SAMPLE = 1 << 16  # bytes that show the order of day and month
_LINES = 8  # first lines, one of which must be a message
_LONGEST_NAME = 60
_MEDIA_WORDS = 3  # "image omitted", in any language
_LEVELS = {"TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL"}
_HEAD = re.compile(
    r"""(?P<bracket>\[)?
    (?P<a>\d{1,4})(?:[./-]|년)\s?(?P<b>\d{1,2})(?:[./-]|월)\s?(?P<c>\d{1,4})(?:\.|일)?
    [,،]?\s+(?:(?:klo|um|kl\.?|at|à|alle|às|a\ las|o)\s+)?
    (?P<before>上午|下午|凌晨|早上|中午|晚上|오전|오후|午前|午後|[AaPp][Mm])?\s?
    (?P<hour>\d{1,2})[:.h](?P<minute>\d{2})(?:[:.](?P<second>\d{2}))?
    (?:\s?(?P<after>[ap]\.?\s?m\.?|[AP]M|午前|午後|ص|م|μ\.?μ\.?|π\.?μ\.?))?
    (?(bracket)\]|(?:\s[-–]|(?<=\d),))\s""",
    re.VERBOSE | re.IGNORECASE,
)
_LATE = {"下午", "晚上", "오후", "午後", "م", "μμ"}  # "pm" in other languages
_MEDIA = re.compile(
    r"<[^<>\n]{3,60}>|\S.{0,120}\.\w{2,5} \([^()\n]{4,40}\)|null|!?\[[^\]\n]*\]\(\./media/[^)\n]*\)|"
    r"\((?:media|attachment) not exported\)|(?:image|video|audio|sticker|GIF|document|Contact card) omitted"
)
_DELETED = re.compile(
    r"(?:\(?(?:This message was deleted|You deleted this message)\)?|Diese Nachricht wurde gelöscht|"
    r"Du hast diese Nachricht gelöscht|(?:Se eliminó|Eliminaste) este mensaje|Ce message a été supprimé|"
    r"Vous avez supprimé ce message|Questo messaggio è stato eliminato|Hai eliminato questo messaggio|"
    r"(?:Essa mensagem foi|Esta mensagem foi|Mensagem|Você apagou esta mensagem|Apagou esta mensagem)(?: apagada)?|"
    r"Dit bericht is verwijderd|(?:U hebt|Je hebt) dit bericht verwijderd)\.?"
)
_SYSTEM = re.compile(
    r"(?:Missed (?:voice|video|group voice|group video) call|Waiting for this message|"
    r"Messages and calls are end-to-end encrypted|Nachrichten und Anrufe sind Ende-zu-Ende)\b.*",
    re.DOTALL,
)
_EDITED = re.compile(r"<[^<>\n]{0,60}(?:edited|bearbeitet|edit[óa]|editad|modifi|bewerkt)[^<>\n]{0,60}>$")
_REACTIONS = re.compile(r"\n\(- .* -\)$")


class WhatsApp(Talk):
    title = "chat of WhatsApp or Signal"

    def recognises_content(self, begin: bytes) -> bool:
        lines = begin.decode("utf-8", "ignore").splitlines()[:_LINES]
        heads = [head for line in lines if (head := _head(line))]
        return bool(heads) and _head(lines[0]) is not None and any(map(_is_said, heads))

    def said(self, data: Input) -> Iterator[Found]:
        order = _order(data)
        begun: tuple[re.Match[str], Lines] | None = None
        for where, line in text_lines(data):
            if isinstance(line, Bad):
                yield line
            elif head := _head(line):
                if begun:
                    yield _message(*begun, order)
                begun = head[0], Lines(where, head[1])
            elif begun:
                begun[1].add(line)
        if begun:
            yield _message(*begun, order)


CONTAINER = WhatsApp()


def _head(line: str) -> tuple[re.Match[str], str] | None:
    """Return the time at the beginning of a line, and the rest; None if the line continues a message."""
    line = line.lstrip("\u200e\u200f\u202a\u202b\u202c\ufeff")
    found = _HEAD.match(line)
    if found is None or (found["second"] and not found["bracket"] and "," not in found[0]):
        return None  # lines of logs have seconds, and no bracket
    return found, line[found.end() :]


def _sender(rest: str) -> tuple[str, str] | None:
    """Return name and text of a message; None for a line of the program."""
    name, colon, text = rest.partition(":")
    name = plain(name).strip().removeprefix("~").strip()
    if not colon or not name or len(name) > _LONGEST_NAME or any(mark in name for mark in '"“”«»'):
        return None
    return (name, text.removeprefix(" ")) if text[:1] in ("", " ", "\u200e") else None


def _is_said(head: tuple[re.Match[str], str]) -> bool:
    """Whether a line is a message, and not one of a program's log."""
    sender = _sender(head[1])
    return sender is not None and sender[0].upper() not in _LEVELS


def _message(head: re.Match[str], lines: Lines, order: str) -> Found:
    found = _sender(lines.lines[0])
    if found is None:
        return LeftOut("system message")
    name, first = found
    text = "\n".join([first, *lines.lines[1:]])
    is_programs = first.startswith("\u200e")  # iOS marks its own words so
    text = _REACTIONS.sub("", _EDITED.sub("", plain(text).strip())).strip()
    if _DELETED.fullmatch(text):
        return LeftOut("deleted message")
    if _SYSTEM.fullmatch(text):
        return LeftOut("system message")
    media = _MEDIA.match(text)
    if media and (media.end() == len(text) or text[media.end()] == "\n"):
        text = text[media.end() :].strip()  # what follows is its caption
        if not text:
            return LeftOut("attachment")
    elif is_programs:
        return LeftOut("attachment" if len(text.split()) <= _MEDIA_WORDS else "system message")
    if not text:
        return LeftOut("empty message")
    return Said(lines.where, name, text, _time(head, order))


def _order(data: Input) -> str:
    """Return the order of day, month and year: "dmy", "mdy" or "ymd"."""
    with data.open() as file:
        lines = file.read(_SAMPLE).decode("utf-8", "ignore").splitlines()
    heads = [head[0] for line in lines if (head := _head(line))]
    if any(len(head["a"]) == 4 for head in heads):
        return "ymd"
    first, second = (max((int(head[part]) for head in heads), default=0) for part in "ab")
    if first > 12 or second > 12:
        return "dmy" if first > 12 else "mdy"
    wrong = {order: _steps_back([_time(head, order) for head in heads]) for order in ("dmy", "mdy")}
    if wrong["dmy"] != wrong["mdy"]:
        return min(wrong, key=wrong.__getitem__)
    return "mdy" if any((head["after"] or "").isupper() and "/" in head[0] for head in heads) else "dmy"


def _steps_back(times: list[float | None]) -> int:
    known = [time for time in times if time is not None]
    return sum(after < before for before, after in pairwise(known))


def _time(head: re.Match[str], order: str) -> float | None:
    """Return seconds; None if there is no such time."""
    date = dict(zip(order, map(int, head.group("a", "b", "c")), strict=True))
    year = date["y"] if date["y"] >= 100 else 2000 + date["y"]
    half = re.sub(r"[.\s]", "", head["before"] or head["after"] or "").lower()
    hour = int(head["hour"])
    if half:
        hour = hour % 12 + 12 * (half.startswith("p") or half in _LATE)
    try:
        time = datetime(year, date["m"], date["d"], hour, int(head["minute"]), tzinfo=timezone.utc)
    except ValueError:
        return None
    return time.timestamp() + int(head["second"] or 0)
