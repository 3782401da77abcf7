"""One JSON object a line; blank lines are passed over."""

from __future__ import annotations

from collections.abc import Iterator

from featherback.data.containers.base import MOST_RECORD, NOT_UTF8, Record, Records
from featherback.data.containers.json_text import record_of
from featherback.data.example import Bad
from featherback.data.inputs import Input


class Lines(Records):
    title = "JSON lines"
    suffixes = (".jsonl", ".ndjson", ".json")
    nothing = "only blank lines"

    def fits(self, begin: bytes) -> bool:
        return not begin.startswith(b"[")

    def betrays(self, begin: bytes) -> bool:
        return begin.startswith(b"{")

    def read(self, data: Input) -> Iterator[Record | Bad]:
        number, whole = 0, True
        for line in data.lines(MOST_RECORD):
            number, begins, whole = number + whole, whole, line.endswith(b"\n")
            where = data.line(number)
            if not begins:  # of a line that was told of
                continue
            if len(line) == MOST_RECORD and not whole:
                yield Bad(where, f"longer than {MOST_RECORD >> 20} MB; split the example.")
                continue
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError:
                yield Bad(where, NOT_UTF8)
                continue
            if text:
                yield record_of(text, where)


CONTAINER = Lines()
