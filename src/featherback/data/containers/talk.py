"""Messages that people have written to each other, as programs export them.

The rule that makes examples of them: the messages of the person that `--me` names are the answers, and those of all
others are the questions. A conversation ends after some hours of silence, or at the next question once it is long.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import groupby

from featherback.core.naming import argument
from featherback.core.terminal import several
from featherback.data.containers.base import Record, Records, not_utf8
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.record_size import MOST_RECORD, SHORT, RawSize, admits_raw
from featherback.errors import FeatherbackError, did_you_mean, excerpt, first_few, near

SILENCE = 3 * 3600
"""Seconds without a message after which a conversation has ended."""
LONG = 4000
"""Characters after which a conversation ends at the next question."""
TOO_LONG = f"the message is longer than {MOST_RECORD >> 20} MB. Split it."
_FRACTION = re.compile(r"\.\d+")  # of seconds, which Python 3.10 reads with three or six digits only
_MOST_NAMES = 10_000  # people of one file that are counted
_OWN = ("Me", "You", "me", "you")
_MARKS = dict.fromkeys(map(ord, "\u200e\u200f\u202a\u202b\u202c\u2066\u2067\u2068\u2069\ufeff"))


@dataclass(frozen=True)
class Said:
    """A message of a person."""

    where: str
    name: str
    """The name that stands for one person."""
    text: str
    time: float | None = None
    """Seconds; None if conversations do not end after some silence."""
    chat: object = None
    """Whatever is different for each chat or thread of the file."""
    shown: str = ""
    """The person's name for other people, if that is not `name`."""


class LeftOut(str):
    """The kind of a message that is not used, in the singular: "attachment"."""


Found = Said | LeftOut | Bad


class Talk(Records):
    """A format that holds messages of people."""

    nothing = "because nobody's message is followed by an answer of the person that was named"

    @abstractmethod
    def said(self, data: Input) -> Iterator[Found]:
        """Yield the messages of each chat in the order of time."""

    def read(self, data: Input) -> Iterator[Record | Bad]:
        names: Counter[str] = Counter()
        asked, seen = {folded(name) for name in data.me}, False
        conversation = Conversation(data.left_out)
        for each in self.said(data):
            if isinstance(each, LeftOut):
                data.left_out[each] += 1
            elif isinstance(each, Bad):
                yield each
            elif len(each.text) <= SHORT or admits_raw(data.room, each.where, each.text.encode()):
                if each.name in names or len(names) < _MOST_NAMES:
                    names[each.name] += 1
                is_me = not asked.isdisjoint((folded(each.name), folded(each.shown)))
                seen = seen or is_me
                if conversation.ends_before(each, is_me):
                    yield from conversation.records()
                    conversation = Conversation(data.left_out)
                if asked:
                    conversation.add(each, is_me)
        yield from conversation.records()
        if names and not seen and not data.room.refused:
            raise _whose(data, names)


@dataclass
class Conversation:
    """A conversation that is being read. `left_out` counts messages without a question or an answer."""

    left_out: Counter[str]
    _said: list[tuple[Said, bool]] = field(default_factory=list)
    _length: int = 0

    def ends_before(self, said: Said, is_me: bool) -> bool:
        """Whether a message begins another conversation."""
        if not self._said:
            return False
        last, was_me = self._said[-1]
        silent = None not in (last.time, said.time) and said.time - last.time > SILENCE  # type: ignore[operator]
        return silent or last.chat != said.chat or (self._length >= LONG and was_me and not is_me)

    def add(self, said: Said, is_me: bool) -> None:
        self._said.append((said, is_me))
        self._length += len(said.text)

    def records(self) -> Iterator[Record]:
        """Yield the conversation, if it has a question and an answer."""
        used = self._said[answered([is_me for _, is_me in self._said], self.left_out)]
        several_others = len({said.name for said, is_me in used if not is_me}) > 1
        turns = [
            (
                "assistant" if is_me else "user",
                f"{said.shown or said.name}: {said.text}" if several_others and not is_me else said.text,
            )
            for said, is_me in used
        ]
        if turns:
            yield Record(used[0][0].where, {"messages": joined(turns, "\n")})


def answered(are_answers: list[bool], left_out: Counter[str]) -> slice:
    """Return which messages have a question before them or an answer after them, and count the others."""
    first = next((at for at, is_answer in enumerate(are_answers) if not is_answer), len(are_answers))
    end = max((at + 1 for at, is_answer in enumerate(are_answers) if is_answer), default=0)
    for kind, count in (("unprompted message", first), ("unanswered message", len(are_answers) - max(first, end))):
        if count:
            left_out[kind] += count
    return slice(first, max(first, end))


def joined(turns: Iterable[tuple[str, str]], between: str) -> list[dict[str, str]]:
    """Return messages of a role and a text, with the texts of successive messages of a role joined."""
    return [
        {"role": role, "content": between.join(text for _, text in group)}
        for role, group in groupby(turns, lambda turn: turn[0])
    ]


def text_lines(data: Input) -> Iterator[tuple[str, str | Bad]]:
    """Yield the lines of a text with their places, without line ends. A line that is too long is a Bad."""
    for number, line in enumerate(data.whole_lines(data.room.most), 1):
        where = data.line(number)
        if isinstance(line, RawSize):
            if data.room.admits(where, line.size, line.reading, line.at_most):
                yield where, Bad(where, TOO_LONG)
            continue
        try:
            yield where, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise FeatherbackError(f"{where}: {not_utf8()}") from None


class Lines:
    """The lines of a message, of limited length."""

    def __init__(self, where: str, *lines: str) -> None:
        self.where, self.lines, self._length = where, list(lines), 0

    def add(self, line: str) -> None:
        """Add a line. Raises FeatherbackError if the message is too long."""
        self._length += len(line) + 1
        if self._length > MOST_RECORD:
            raise FeatherbackError(f"{self.where}: {TOO_LONG}")
        self.lines.append(line)


def seconds(*times: object) -> float | None:
    """Return the first of some times that can be read, in seconds: a number or its digits, or a date of ISO 8601."""
    for time in times:
        with suppress(ValueError, OverflowError):
            if isinstance(time, (int, float)) or (isinstance(time, str) and time.isdecimal()):
                return float(time)
            if isinstance(time, str):
                found = datetime.fromisoformat(_FRACTION.sub("", time.replace("Z", "+00:00")))
                return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    return None


def plain(text: str) -> str:
    """Return a text without marks of direction, which programs put around names and numbers."""
    return text.translate(_MARKS)


def folded(name: str) -> str:
    """Return a name as names are compared; empty for no name."""
    return " ".join(plain(name).split()).casefold()


def left_out_note(name: str, left_out: Mapping[str, int]) -> str | None:
    """Return the sentence about what was not used of a file, or None."""
    if not left_out:
        return None
    kinds = sorted(left_out.items(), key=lambda item: -item[1])
    return f"Left out of {name}: {', '.join(several(count, kind) for kind, count in kinds)}."


def _whose(data: Input, names: Counter[str]) -> FeatherbackError:
    """Return the error for a file if nobody was named, or none of the people in it."""
    found = first_few([f"{name} ({count})" for name, count in names.most_common()])
    example = argument("me", next((name for name in names if name in _OWN), names.most_common(1)[0][0]))
    if not data.me:
        return FeatherbackError(
            f"{data.name} holds messages of {found}. Name the person whose answers are to be learned: {example}."
        )
    named = " or ".join(excerpt(name) for name in data.me)
    meant = did_you_mean(near(data.me[0], names))
    return FeatherbackError(f"{data.name} has no message of {named}; it holds messages of {found}.{meant}")
