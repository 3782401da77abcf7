"""Estimate the memory in bytes that a long record needs while it is prepared.

There are two estimates: from the raw bytes before parsing, and from the texts before rendering and encoding. The
factors were measured over the whole process tree, with texts of one to four bytes per character, with one token per
character, and with very many messages. docs/data.md states the result.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from featherback.data.example import Example

SHORT = 1 << 16
"""Bytes or characters up to which a record needs no check: it takes no more than the other examples in progress."""
MOST_RECORD = 16 << 20
"""Maximum size of a record in bytes. There is a limit because a record is read as a whole."""

MOST_COLUMNS = 1000
"""Maximum number of columns of a table."""
MOST_VALUES = 250_000
"""Maximum number of commas and brackets in the JSON of a record. Each stands for a value of up to 600 bytes."""
MOST_DECODED = 96_000_000
"""Maximum memory in bytes that a library may take, besides its own, to decode rows of a binary table."""
LEAST_DECODED = 4_000_000
_EXPANSION, _LEAST_EXPANDED = 100, MOST_RECORD
"""How many times its size a compressed file may expand to, and how many bytes any file may."""

_JSON, _TEXT, _TOKENS, _MESSAGE = 16, 4, 30, 2000
"""Bytes for a chat: per byte of JSON, per byte of its strings in memory, per byte of UTF-8, and per message."""
_LIST, _VALUE, _PAIR, _OBJECT = 64, 48, 150, 600
"""Bytes for parsed JSON besides its strings: per list, value, key and object."""
_WIDE = tuple(bytes([lead]) for lead in range(0xF0, 0xF5))  # first bytes of characters beyond 16 bits
_BEGIN_OF_OBJECT, _END_OF_KEY = re.compile(rb'\{\s*"'), re.compile(rb'"\s*:')
_PIECE = 1 << 16


class RecordRoom(Protocol):
    """Decides whether a record fits in the memory budget."""

    @property
    def most(self) -> int:
        """Maximum number of bytes of a record that are read before `admits` is called."""

    @property
    def refused(self) -> bool:
        """Whether a record was refused. The others are then only measured, to find the memory that all need."""

    def sample_memory(self, now: bool = False) -> None:
        """Measure the memory in use: at once if `now`, otherwise only from time to time."""

    def admits(self, where: str, size: int, takes: int, takes_at_most: int) -> bool:
        """Whether a record fits; a refusal is remembered.

        `size`: its bytes. `takes`: memory for the next step. `takes_at_most`: memory until it is encoded.
        """

    def lend(self, where: str) -> int:
        """Set memory aside for a process that decodes rows and is loaded now; return how much, in bytes.

        Zero is a refusal, which is remembered.
        """

    def take_back(self, used: int) -> None:
        """Take back what was lent. `used`: the most bytes that the process took, if that is known."""

    def lacks(self, where: str) -> bool:
        """Whether a process that was lent too little could not be lent more. Otherwise the refusal is remembered."""


class Unbounded:
    """No budget: every record may be read."""

    most, refused = MOST_RECORD, False

    def sample_memory(self, now: bool = False) -> None:
        pass

    def admits(self, where: str, size: int, takes: int, takes_at_most: int) -> bool:
        return True

    def lend(self, where: str) -> int:
        return MOST_DECODED

    def take_back(self, used: int) -> None:
        pass

    def lacks(self, where: str) -> bool:
        return True


class RawSize:
    """Memory estimate from a record's raw bytes, which may arrive in pieces.

    `beside`: additional bytes that the reader holds per byte.
    """

    def __init__(self, *pieces: bytes, beside: int = 0) -> None:
        self.size, self._width, self._structure, self._objects, self._escaped = 0, 1, 0, 0, 1
        self._beside = beside
        for piece in pieces:
            self.add(piece)

    @classmethod
    def of_unknown(cls, size: int, beside: int = 0) -> RawSize:
        """The estimate for a record of which only the size in bytes is known."""
        found = cls(beside=beside)
        found.size, found._width, found._escaped = size, 4, 3
        return found

    def add(self, piece: bytes) -> None:
        """Count another piece of the record."""
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
        """Bytes of memory that parsing takes."""
        each = 2 + 3 * self._width + self._beside
        return each * self.size + self._structure + _OBJECT * self._objects

    @property
    def at_most(self) -> int:
        """Bytes of memory for the whole preparation, if the record is a chat."""
        texts = max(_JSON * self._escaped, _TOKENS) + _TEXT * self._width + self._beside
        return max(self.reading, texts * self.size + _MESSAGE * self._objects)


def admits_raw(room: RecordRoom, where: str, record: bytes) -> bool:
    """Whether a record may be parsed."""
    if isinstance(room, Unbounded) or len(record) <= SHORT:
        return True
    found = RawSize(record)
    return room.admits(where, found.size, found.reading, found.at_most)


def admits_example(room: RecordRoom, example: Example) -> bool:
    """Whether an example may be rendered and encoded. A plain text always may: it is encoded in pieces."""
    texts = [text for each in example.sides for text in (each.prompt, each.completion, each.system) if text]
    messages = [message for each in example.sides for message in each.messages or ()]
    texts += [message["content"] for message in messages]
    said = [message.get("tool_calls", "") for message in messages] + [each.tools or "" for each in example.sides]
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
    """Return the bytes of a string in ASCII JSON."""
    return sum(len(json.dumps(piece)) - 2 for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))


class Expansion:
    """Counts what a compressed file expands to. `size`: the file's bytes."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self._left = name, max(_EXPANSION * size, _LEAST_EXPANDED)

    def add(self, nbytes: int) -> None:
        """Count more bytes. Raises FeatherbackError if there are too many."""
        self._left -= nbytes
        if self._left < 0:
            raise FeatherbackError(
                f"{self._name} expands to more than {_EXPANSION} times its size, which only files of repeated text do. "
                "If that is right, save it uncompressed, as JSON lines."
            )
