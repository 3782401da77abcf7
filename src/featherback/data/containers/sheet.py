"""Spreadsheets of Excel and LibreOffice. The first row holds the names of the columns."""

from __future__ import annotations

import json
from collections.abc import Iterator

from featherback.data.containers.base import Record
from featherback.data.containers.decoded import Decoded
from featherback.data.containers.table import records_of
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.record_size import MOST_RECORD, RawSize, admits_raw


class Sheet(Decoded):
    title = "spreadsheet"
    suffixes = (".xlsx", ".xls", ".ods", ".xlsm", ".xlsb")
    table_keys = ("header", "sheet", "html")
    called, decoder = "a spreadsheet", "sheet"
    package, module, extra = "python-calamine", "python_calamine", "sheets"

    def read(self, data: Input) -> Iterator[Record | Bad]:
        yield from records_of(self._cells(data), data)

    def _cells(self, data: Input) -> Iterator[tuple[str, list[object] | str]]:
        for number, line in self.lines(data):
            where = f"{data.name}, row {number}"
            if isinstance(line, RawSize):
                if line.size > MOST_RECORD:
                    yield where, f"the row is longer than {MOST_RECORD >> 20} MB. Split the example."
                else:
                    data.room.admits(where, line.size, line.reading, line.at_most)
            elif admits_raw(data.room, where, line):
                yield where, json.loads(line)


CONTAINER = Sheet()
