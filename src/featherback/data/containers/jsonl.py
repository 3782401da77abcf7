"""JSON lines: one JSON object per line. Blank lines are skipped."""

from __future__ import annotations

from collections.abc import Iterator

from featherback.data.containers.base import NOT_UTF8, Record, Records
from featherback.data.containers.json_text import record_of
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.record_size import MOST_RECORD, RawSize, admits_raw


class Lines(Records):
    title = "JSON lines"
    suffixes = (".jsonl", ".ndjson", ".json")
    nothing = "only blank lines"

    def fits(self, begin: bytes) -> bool:
        return not begin.startswith(b"[")

    def recognises_start(self, begin: bytes) -> bool:
        return begin.startswith(b"{")

    def read(self, data: Input) -> Iterator[Record | Bad]:
        for number, line in enumerate(data.whole_lines(data.room.most), 1):
            where = data.line(number)
            if isinstance(line, RawSize):
                if line.size > MOST_RECORD:
                    yield Bad(where, f"the line is longer than {MOST_RECORD >> 20} MB. Split the example.")
                else:
                    data.room.admits(where, line.size, line.reading, line.at_most)
                continue
            if admits_raw(data.room, where, line) and (record := _record(line, where, number == 1)):
                del line  # frees its memory while the record is used
                yield record


CONTAINER = Lines()


def _record(line: bytes, where: str, first: bool) -> Record | Bad | None:
    """Parse a line; None if it is blank. The first line of a file may begin with a byte order mark."""
    try:
        text = line.decode("utf-8-sig" if first else "utf-8").strip()
    except UnicodeDecodeError:
        return Bad(where, NOT_UTF8)
    return record_of(text, where) if text else None
