"""Find the elements of JSON in any layout without parsing them, and where they stand in the file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from featherback.data.containers.base import Record, not_utf8
from featherback.data.containers.json_text import record_of
from featherback.data.example import Bad

_IN_STRING = re.compile(rb'(?:[^"\\]+|\\.)*', re.DOTALL)
_PLAIN = re.compile(rb'[^"\[\]{},]*')
_NO_BREAK = re.compile(rb"[^\n]")
_SPACE = " \t\r\n\ufeff"
_PIECE = 1 << 16


class Scanner:
    """Splits an array into the texts of its elements, or a file into the texts of its objects, without parsing them.

    `level`: the brackets around the elements: 1 for an array, 2 for an array in an object, 0 for objects.
    """

    def __init__(self, level: int = 1) -> None:
        self._level = level
        self.rest = bytearray()
        """Bytes that do not form a complete element yet."""
        self.marks = 0
        """Brackets and commas of the element so far."""
        self._at = 0  # position up to which `rest` was scanned
        self._depth, self._quoted = 0, False

    @property
    def is_open(self) -> bool:
        """Whether a closing bracket is still to come."""
        return self._depth >= max(1, self._level)

    def elements(self, piece: bytes) -> Iterator[bytes]:
        """Add a piece and yield the elements that are now complete, without commas and the array's brackets."""
        self.rest += piece
        begin, level = 0, self._level
        while (at := self._next_mark()) is not None:
            mark = self.rest[at]
            self.marks += 1
            if mark in b"[{":
                self._depth += 1
                if self._depth == level:
                    self.rest[: at + 1] = _NO_BREAK.sub(b" ", self.rest[: at + 1])
            elif mark in b"]}":
                self._depth -= 1
            if level == 0 and mark in b"]}" and self._depth <= 0:
                yield bytes(self.rest[begin : at + 1])
                begin, self.marks, self._depth = at + 1, 0, 0
            elif level and self._depth < level and mark in b"]}":
                yield bytes(self.rest[begin:at])
                begin = at + 1
                break
            elif level and mark == ord(",") and self._depth == level:
                yield bytes(self.rest[begin:at])
                begin, self.marks = at + 1, 0
        del self.rest[:begin]
        self._at -= begin

    def _next_mark(self) -> int | None:
        """Return the position of the next bracket or comma outside strings; None if it is still to come."""
        while self._at < len(self.rest):
            if self._quoted:
                self._at = _end(_IN_STRING, self.rest, self._at)
                if self.rest[self._at : self._at + 1] != b'"':  # the string goes on in the next piece
                    return None
            else:
                self._at = _end(_PLAIN, self.rest, self._at)
                if self.rest[self._at : self._at + 1] != b'"':
                    break
            self._quoted = not self._quoted
            self._at += 1
        if self._at == len(self.rest):
            return None
        self._at += 1
        return self._at - 1


class Position:
    """The line and column, in characters, of the next element."""

    def __init__(self, name: str) -> None:
        self._name, self._line, self._column = name, 1, 1

    def __str__(self) -> str:
        return f"{self._name}, line {self._line}, column {self._column}"

    def record(self, element: bytes, after: str = ",") -> Record | Bad:
        """Parse the element that begins here, and move past it and what stands `after` it."""
        try:
            text = element.decode()
        except UnicodeDecodeError as error:
            self._pass(element[: error.start].decode())
            where = str(self)
            self._pass(element[error.start :].decode("utf-8", "replace") + after)
            return Bad(where, not_utf8())
        core = text.strip(_SPACE)
        before = len(text) - len(text.lstrip(_SPACE))
        self._pass(text[:before])
        where, line, column = str(self), self._line, self._column
        self._pass(text[before:] + after)
        return record_of(core, where, line, column)

    def skip(self, element: bytes, after: str = ",") -> None:
        """Move past the element that begins here and what stands `after` it."""
        for at in range(0, len(element), _PIECE):
            self._pass(element[at : at + _PIECE].decode("utf-8", "ignore"))
        self._pass(after)

    def _pass(self, text: str) -> None:
        breaks = text.count("\n")
        self._line += breaks
        self._column = len(text) - text.rindex("\n") if breaks else self._column + len(text)


def _end(pattern: re.Pattern[bytes], data: bytearray, at: int) -> int:
    match = pattern.match(data, at)
    assert match is not None  # it may be empty
    return match.end()
