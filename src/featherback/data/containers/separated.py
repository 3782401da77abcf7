"""Tables as text: a line of column names, then one record per line, or on several lines if a field is quoted."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import ClassVar, Literal

from featherback.data.containers.base import Record, Records, not_utf8
from featherback.data.containers.dialect import SAMPLE, Dialect, dialect_of
from featherback.data.containers.table import TITLE, records_of
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.record_size import MOST_RECORD, MOST_VALUES, SHORT, RawSize

_BESIDE = 8  # bytes that the csv module keeps per character of the longest field
_TOO_LONG = (
    f"the row is longer than {MOST_RECORD >> 20} MB, or a quotation mark is missing. Split the example, or add the "
    "quotation mark."
)


class Separated(Records):
    """A table as text. `usual` is the separator that the file's ending stands for."""

    usual: ClassVar[str]
    nothing = "only a line of column names"
    table_keys = ("separator", "quotes", "header", "encoding", "html")

    def read(self, data: Input) -> Iterator[Record | Bad]:
        dialect, lines = self._dialect(data), _Lines(data)
        lines.separator = dialect.separator.encode()
        hint = f" Put a field that contains {dialect.separator!r} in quotation marks." if dialect.quotes else ""
        if dialect.titles:
            data.left_out[TITLE] += dialect.titles
        yield from records_of(_placed(lines, data, dialect), data, hint)

    def describe(self, data: Input) -> str:
        return f"{self.title}, {self._dialect(data)}"

    def _dialect(self, data: Input) -> Dialect:
        with data.open() as file:
            sample = file.read(SAMPLE)
        text = sample.decode("utf-8-sig", "replace")
        return dialect_of(text, len(sample) < SAMPLE, self.usual, data.table)


def _placed(lines: _Lines, data: Input, dialect: Dialect) -> Iterator[tuple[str, list[str] | str]]:
    """Yield the rows with their places."""
    for line, fields in _rows(lines, dialect):
        where = f"{data.name}, line {line}"
        if not lines.refused(where, fields):
            yield where, fields


class _LineError(Exception):
    """A line cannot be read, but the lines after it can."""


class _Lines(Iterator[str]):
    """Iterates over the lines of a file as text. It can go on after `__next__` has raised _LineError."""

    def __init__(self, data: Input) -> None:
        self._data, self._lines = data, data.whole_lines(data.room.most, _BESIDE)
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
            return line.decode().removeprefix("\ufeff" if self.number == 1 else "")
        except UnicodeDecodeError:
            raise _LineError(not_utf8()) from None

    def refused(self, where: str, fields: list[str] | str) -> bool:
        """Whether the row that was read does not fit in the memory budget."""
        room, long = self._data.room, self._long
        if isinstance(fields, list) and self._row > SHORT:
            long = RawSize(*(field.encode() for field in fields), beside=_BESIDE)
        return 0 < long.size <= MOST_RECORD and not room.admits(where, long.size, long.reading, long.at_most)


def _rows(lines: _Lines, dialect: Dialect) -> Iterator[tuple[int, list[str] | str]]:
    """Yield (line number, fields) for rows that are not blank. For a bad row, the error message replaces the fields."""
    for _ in range(dialect.skip):
        next(lines, None)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if dialect.quotes else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=dialect.separator, strict=True, quoting=quoting)
    begin = 1 + dialect.skip
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
            row = _problem(str(error), dialect.separator)
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
