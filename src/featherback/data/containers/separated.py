"""Tables as text: a line of column names, then a record a line, or several lines where a field is quoted."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from typing import ClassVar

from featherback.core.terminal import several
from featherback.data.containers.base import NOT_UTF8, Record, Records
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.record_size import MOST_RECORD, SHORT, RawSize
from featherback.errors import FeatherbackError, shown

_BESIDE = 8  # bytes that the csv module keeps for each character of the longest field
_TOO_LONG = f"longer than {MOST_RECORD >> 20} MB, or a quotation mark is missing; split the example."


class Separated(Records):
    """Fields between separators; the one of `separators` that the first line has."""

    separators: ClassVar[tuple[str, ...]]
    nothing = "only a line of column names"

    def read(self, data: Input) -> Iterator[Record | Bad]:
        lines = _Lines(data)
        try:
            first = next(lines, "").removeprefix("\ufeff")
        except _LineError as error:
            raise FeatherbackError(f"{data.name}, line 1: {error}") from None
        separator = next((each for each in self.separators if each in first), self.separators[0])
        rows = _rows(first, lines, separator)
        _, names = next(rows) if first.strip() else (1, [])
        if isinstance(names, str) or not names or not all(names) or len(set(names)) < len(names):
            raise FeatherbackError(
                f"{data.name}, line 1: expected the names of the columns, each once; found {shown(first.strip())}."
            )
        for line, fields in rows:
            where = f"{data.name}, line {line}"
            if lines.refused(where, fields):
                continue
            if isinstance(fields, str):
                yield Bad(where, fields)
            elif len(fields) != len(names):
                yield Bad(where, f"{several(len(fields), 'field')} in a table of {several(len(names), 'column')}.")
            else:
                yield Record(where, dict(zip(names, fields, strict=True)))


class _LineError(Exception):
    """A line that cannot be read; the next one can."""


class _Lines(Iterator[str]):
    """The lines of a file as text. Its `__next__` may raise _LineError, and goes on afterwards."""

    def __init__(self, data: Input) -> None:
        self._data, self._lines = data, data.whole_lines(data.room.most)
        self.number = 0
        """Of those that were read."""
        self._row, self._long = 0, RawSize()

    def begin_row(self) -> None:
        """What is read next is another row."""
        self._row, self._long = 0, RawSize()

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        if isinstance(line, RawSize):
            self._long = line
            raise _LineError(_TOO_LONG)
        self._row += len(line)
        if self._row > self._data.room.most:  # how long it is will not be known
            self._long = RawSize.of_unknown(min(MOST_RECORD, self._data.size), _BESIDE)
            raise _LineError(_TOO_LONG)
        try:
            return line.decode()
        except UnicodeDecodeError:
            raise _LineError(NOT_UTF8) from None

    def refused(self, where: str, fields: list[str] | str) -> bool:
        """Whether there is no room for the row that was read."""
        room, long = self._data.room, self._long
        if isinstance(fields, list) and self._row > SHORT:
            long = RawSize(*(field.encode() for field in fields), beside=_BESIDE)
        return 0 < long.size <= MOST_RECORD and not room.admits(where, long.size, long.reading, long.at_most)


def _rows(first: str, lines: _Lines, separator: str) -> Iterator[tuple[int, list[str] | str]]:
    """The rows that are not blank, each with the line it begins on; what is wrong with it in place of a row."""
    reader = csv.reader(chain([first], lines), delimiter=separator, strict=True)
    begin = 1
    while True:
        lines.begin_row()
        usual = csv.field_size_limit(MOST_RECORD)  # the limit is the process's
        try:
            row: list[str] | str = next(reader)
        except StopIteration:
            return
        except _LineError as error:
            row = str(error)
        except csv.Error as error:
            row = _problem(str(error), separator)
        finally:
            csv.field_size_limit(usual)
        if row:
            yield begin, row
        begin = lines.number + 1


def _problem(said: str, separator: str) -> str:
    if "unexpected end" in said:
        return "a quoted field does not end."
    if "limit" in said:
        return _TOO_LONG
    if "expected after" in said:
        return (
            'a quoted field goes on behind its closing quotation mark: write a quotation mark in a field as "", and '
            "see that the field before it is closed."
        )
    return f"not readable as fields between {separator!r}: {said}."
