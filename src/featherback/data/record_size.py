"""What a long record takes in memory while it is prepared, in bytes.

Counted twice: from its bytes before it is parsed, and from its texts before they are rendered and encoded. The factors
were measured over the whole process tree, with texts of one to four bytes a character, of one token a character, and of
very many messages; docs/data.md states them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from featherback.data.example import Example

SHORT = 1 << 16
"""Bytes, or characters, up to which a record takes no more than the many that are under way at once."""
MOST_RECORD = 16 << 20
"""Bytes that a record may have, as it is read at once."""

_JSON, _TEXT, _TOKENS, _MESSAGE = 16, 4, 30, 2000
"""Of a chat: for each byte of its JSON, of its strings in memory and of its UTF-8 (a token at most), each message."""
_LIST, _VALUE, _PAIR, _OBJECT = 64, 48, 150, 600
"""Of parsed JSON, besides its strings: for each list, value, key and object."""
_WIDE = tuple(bytes([lead]) for lead in range(0xF0, 0xF5))  # begin characters beyond 16 bits
_BEGIN_OF_OBJECT, _END_OF_KEY = re.compile(rb'\{\s*"'), re.compile(rb'"\s*:')
_PIECE = 1 << 16


class RecordRoom(Protocol):
    """Who decides whether a record may be read."""

    @property
    def most(self) -> int:
        """Bytes of a record that are read before it is asked for."""

    @property
    def refused(self) -> bool:
        """Whether a record was refused: then the others are only looked at, to find what all of them need."""

    def look(self, now: bool = False) -> None:
        """See what is held; unless it has to be `now`, only once in a while."""

    def admits(self, where: str, size: int, takes: int, takes_at_most: int) -> bool:
        """Whether the record of `size` bytes may go on, which now `takes` so many bytes and `takes_at_most` until it is
        encoded. If not, that is remembered."""


class Unbounded:
    """No budget: every record may be read."""

    most, refused = MOST_RECORD, False

    def look(self, now: bool = False) -> None:
        pass

    def admits(self, where: str, size: int, takes: int, takes_at_most: int) -> bool:
        return True


class RawSize:
    """What a record takes, by its bytes, which may come piece by piece.

    `beside`: bytes that its reader holds for each.
    """

    def __init__(self, *pieces: bytes, beside: int = 0) -> None:
        self.size, self._width, self._structure, self._objects, self._escaped = 0, 1, 0, 0, 1
        self._beside = beside
        for piece in pieces:
            self.add(piece)

    @classmethod
    def of_unknown(cls, size: int, beside: int = 0) -> RawSize:
        """The same of a record of which only the size in bytes is known."""
        found = cls(beside=beside)
        found.size, found._width, found._escaped = size, 4, 3
        return found

    def add(self, piece: bytes) -> None:
        """Count more of the record."""
        self.size += len(piece)
        if not piece.isascii():
            self._escaped = 3
            self._width = max(self._width, 4 if any(lead in piece for lead in _WIDE) else 2)
        if b"\\u" in piece:
            self._width = max(self._width, 4 if b"\\ud" in piece or b"\\uD" in piece else 2)
        lists = piece.count(b"[") + piece.count(b"{")
        self._objects += len(_BEGIN_OF_OBJECT.findall(piece))
        self._structure += _LIST * lists + _VALUE * piece.count(b",") + _PAIR * len(_END_OF_KEY.findall(piece))

    @property
    def reading(self) -> int:
        """Bytes that parsing takes."""
        each = 2 + 3 * self._width + self._beside
        return each * self.size + self._structure + _OBJECT * self._objects

    @property
    def at_most(self) -> int:
        """Bytes that all of the preparation takes if the record is a chat."""
        texts = max(_JSON * self._escaped, _TOKENS) + _TEXT * self._width + self._beside
        return max(self.reading, texts * self.size + _MESSAGE * self._objects)


def admits_raw(room: RecordRoom, where: str, record: bytes) -> bool:
    """Whether a record may be parsed."""
    if isinstance(room, Unbounded) or len(record) <= SHORT:
        return True
    found = RawSize(record)
    return room.admits(where, found.size, found.reading, found.at_most)


def admits_example(room: RecordRoom, example: Example) -> bool:
    """Whether an example may be rendered and encoded. A text is encoded piece by piece, whatever its length."""
    texts = [each for each in (example.prompt, example.completion, example.system) if each]
    messages = example.messages or ()
    texts += [message["content"] for message in messages]
    said = [message.get("tool_calls", "") for message in messages] + [example.tools or ""]
    length = sum(map(len, texts)) + sum(len(str(each)) for each in said if each)
    if isinstance(room, Unbounded) or length <= SHORT:
        return True
    texts += [json.dumps(each) for each in said if each]
    written = sum(map(_escaped, texts))
    held = sum(map(sys.getsizeof, texts))
    tokens = sum(len(piece.encode("utf-8", "surrogatepass")) for text in texts for piece in _pieces(text))
    takes = max(_JSON * written, _TOKENS * tokens) + _TEXT * held + _MESSAGE * len(messages)
    return room.admits(example.where, tokens, takes, takes)


def _escaped(text: str) -> int:
    """Bytes of a string in JSON that is ASCII."""
    return sum(len(json.dumps(piece)) - 2 for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
