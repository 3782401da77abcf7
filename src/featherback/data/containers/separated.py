"""Tables as text: a line of column names, then one record per line, or on several lines if a field is quoted."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from typing import ClassVar

from featherback.core.terminal import several
from featherback.data.containers.base import NOT_UTF8, Record, Records
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.record_size import MOST_COLUMNS, MOST_RECORD, MOST_VALUES, SHORT, RawSize
from featherback.errors import FeatherbackError, excerpt

_BESIDE = 8  # bytes that the csv module keeps per character of the longest field
_TOO_LONG = (
    f"the row is longer than {MOST_RECORD >> 20} MB, or a quotation mark is missing. Split the example, or add the "
    "quotation mark."
)


class Separated(Records):
    """A table whose separator is the first of `separators` that occurs in its first line."""

    separators: ClassVar[tuple[str, ...]]
    nothing = "only a line of column names"

    def read(self, data: Input) -> Iterator[Record | Bad]:
        lines = _Lines(data)
        try:
            first = next(lines, "").removeprefix("\ufeff")
        except _LineError as error:
            raise FeatherbackError(f"{data.name}, line 1: {error}") from None
        separator = next((each for each in self.separators if each in first), self.separators[0])
        lines.separator = separator.encode()
        if (columns := first.count(separator) + 1) > MOST_COLUMNS:
            raise FeatherbackError(f"{data.name} has {columns} columns, and at most {MOST_COLUMNS} are read.")
        rows = _rows(first, lines, separator)
        _, names = next(rows) if first.strip() else (1, [])
        if isinstance(names, str) or not names or not all(names) or len(set(names)) < len(names):
            raise FeatherbackError(
                f"{data.name}, line 1: expected column names, all different, none empty; found "
                f"{excerpt(first.strip())}."
            )
        for line, fields in rows:
            where = f"{data.name}, line {line}"
            if lines.refused(where, fields):
                continue
            if isinstance(fields, str):
                yield Bad(where, fields)
            elif len(fields) != len(names):
                found = f"found {several(len(fields), 'field')}, but line 1 names {several(len(names), 'column')}."
                yield Bad(where, f"{found} Put a field that contains {separator!r} in quotation marks.")
            else:
                yield Record(where, dict(zip(names, fields, strict=True)))


class _LineError(Exception):
    """A line cannot be read, but the lines after it can."""


class _Lines(Iterator[str]):
    """Iterates over the lines of a file as text. It can go on after `__next__` has raised _LineError."""

    def __init__(self, data: Input) -> None:
        self._data, self._lines = data, data.whole_lines(data.room.most)
        self.number = 0
        """The number of lines read so far."""
        self.separator = b","
        self._row, self._fields, self._long = 0, 0, RawSize()

    def begin_row(self) -> None:
        """Start to measure the next row."""
        self._row, self._fields, self._long = 0, 0, RawSize()

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        if isinstance(line, RawSize):
            self._long = line
            raise _LineError(_TOO_LONG)
        self._row += len(line)
        self._fields += line.count(self.separator)
        if self._fields > MOST_VALUES:
            raise _LineError(f"the row has more than {MOST_VALUES} separators. Split the example.")
        if self._row > self._data.room.most:  # its full length is not known
            self._long = RawSize.of_unknown(self._data.longest, _BESIDE)
            raise _LineError(_TOO_LONG)
        try:
            return line.decode()
        except UnicodeDecodeError:
            raise _LineError(NOT_UTF8) from None

    def refused(self, where: str, fields: list[str] | str) -> bool:
        """Whether the row that was read does not fit in the memory budget."""
        room, long = self._data.room, self._long
        if isinstance(fields, list) and self._row > SHORT:
            long = RawSize(*(field.encode() for field in fields), beside=_BESIDE)
        return 0 < long.size <= MOST_RECORD and not room.admits(where, long.size, long.reading, long.at_most)


def _rows(first: str, lines: _Lines, separator: str) -> Iterator[tuple[int, list[str] | str]]:
    """Yield (line number, fields) for rows that are not blank. For a bad row, the error message replaces the fields."""
    reader = csv.reader(chain([first], lines), delimiter=separator, strict=True)
    begin = 1
    while True:
        lines.begin_row()
        usual = csv.field_size_limit(MOST_RECORD)  # the limit applies to the whole process, so it is restored below
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
        return "a quoted field has no closing quotation mark."
    if "limit" in said:
        return _TOO_LONG
    if "expected after" in said:
        return (
            'text follows the closing quotation mark of a field. Write a quotation mark inside a field as "", and '
            "check that the field before it is closed."
        )
    return f"cannot split the line at {separator!r}: {said}."
