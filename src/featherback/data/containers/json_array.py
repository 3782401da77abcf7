"""A JSON array of objects, read element by element. Only one element is in memory at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from featherback.data.containers.base import NOT_UTF8, Record, Records
from featherback.data.containers.json_text import TOO_MANY, record_of
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.record_size import MOST_RECORD, MOST_VALUES, RawSize, admits_raw
from featherback.errors import FeatherbackError

_IN_STRING = re.compile(rb'(?:[^"\\]+|\\.)*', re.DOTALL)
_PLAIN = re.compile(rb'[^"\[\]{},]*')
_SPACE = " \t\r\n\ufeff"
_PIECE = 1 << 16


class Array(Records):
    title = "JSON array"
    suffixes = (".json", ".jsonl", ".ndjson")
    nothing = "only an empty array"

    def fits(self, begin: bytes) -> bool:
        return begin.startswith(b"[")

    recognises_start = fits

    def read(self, data: Input) -> Iterator[Record | Bad]:
        scanner, place = _Scanner(), _Position(data.name)
        several = False
        for piece in data.pieces():
            for element in scanner.elements(piece):
                if not admits_raw(data.room, str(place), element):
                    place.skip(element)
                elif several or scanner.is_open or element.strip():  # an empty array has no element
                    yield place.record(element)
                several = True
            if MOST_RECORD >= len(scanner.rest) > data.room.most:  # its full length is not known
                found = RawSize.of_unknown(min(MOST_RECORD, data.size))
                if not data.room.admits(str(place), found.size, found.reading, found.at_most):
                    return
            if len(scanner.rest) > MOST_RECORD:
                raise FeatherbackError(
                    f"{place}: the example is longer than {MOST_RECORD >> 20} MB, or a quotation mark is missing. "
                    "Split the example, or add the quotation mark."
                )
            if scanner.marks > MOST_VALUES:
                raise FeatherbackError(f"{place}: {TOO_MANY}.")
        if scanner.is_open:
            yield Bad(str(place), "the array has no closing bracket; the file may be incomplete.")
        elif scanner.rest.strip():
            yield Bad(str(place), "text follows the end of the array. Remove it, or write one JSON object per line.")


CONTAINER = Array()


class _Scanner:
    """Splits an array into the texts of its elements, without parsing them."""

    def __init__(self) -> None:
        self.rest = bytearray()
        """Bytes that do not form a complete element yet."""
        self.marks = 0
        """Brackets and commas of the element so far."""
        self._at = 0  # position up to which `rest` was scanned
        self._depth, self._quoted = 0, False

    @property
    def is_open(self) -> bool:
        """Whether the closing bracket is still to come."""
        return self._depth > 0

    def elements(self, piece: bytes) -> Iterator[bytes]:
        """Add a piece and yield the elements that are now complete, without commas and the array's brackets."""
        self.rest += piece
        begin = 0
        while (at := self._next_mark()) is not None:
            mark = self.rest[at]
            self.marks += 1
            if mark in b"[{":
                self._depth += 1
                if self._depth == 1:
                    self.rest[at] = ord(" ")
            elif mark in b"]}":
                self._depth -= 1
            if (mark == ord(",") and self._depth == 1) or (mark in b"]}" and self._depth == 0):
                yield bytes(self.rest[begin:at])
                begin, self.marks = at + 1, 0
                if not self._depth:
                    break
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


class _Position:
    """The line and column, in characters, of the next element."""

    def __init__(self, name: str) -> None:
        self._name, self._line, self._column = name, 1, 1

    def __str__(self) -> str:
        return f"{self._name}, line {self._line}, column {self._column}"

    def record(self, element: bytes) -> Record | Bad:
        """Parse the element that begins here, and move past it and the comma after it."""
        try:
            text = element.decode()
        except UnicodeDecodeError as error:
            self._pass(element[: error.start].decode())
            where = str(self)
            self._pass(element[error.start :].decode("utf-8", "replace") + ",")
            return Bad(where, NOT_UTF8)
        core = text.strip(_SPACE)
        before = len(text) - len(text.lstrip(_SPACE))
        self._pass(text[:before])
        where, line, column = str(self), self._line, self._column
        self._pass(text[before:] + ",")
        return record_of(core, where, line, column)

    def skip(self, element: bytes) -> None:
        """Move past the element that begins here and the comma after it."""
        for at in range(0, len(element), _PIECE):
            self._pass(element[at : at + _PIECE].decode("utf-8", "ignore"))
        self._pass(",")

    def _pass(self, text: str) -> None:
        breaks = text.count("\n")
        self._line += breaks
        self._column = len(text) - text.rindex("\n") if breaks else self._column + len(text)


def _end(pattern: re.Pattern[bytes], data: bytearray, at: int) -> int:
    match = pattern.match(data, at)
    assert match is not None  # it may be empty
    return match.end()
