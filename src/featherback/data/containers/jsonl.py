"""JSON lines: one JSON object per line. Blank lines are skipped."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator

from featherback.data.containers.base import Record, Records
from featherback.data.containers.json_objects import is_line
from featherback.data.containers.lines import record_of_line
from featherback.data.example import Bad
from featherback.data.inputs import Input


class Lines(Records):
    title = "JSON lines"
    suffixes = (".jsonl", ".ndjson", ".json")
    nothing = "only blank lines"

    def fits(self, begin: bytes) -> bool:
        return not begin.startswith(b"[") and (not begin.startswith(b"{") or is_line(begin))

    def recognises_start(self, begin: bytes) -> bool:
        return begin.startswith(b"{") and is_line(begin)

    def read(self, data: Input) -> Iterator[Record | Bad]:
        for number, line in enumerate(data.whole_lines(data.room.most), 1):
            if number == 1 and isinstance(line, bytes):
                line = line.removeprefix(BOM_UTF8)
            if record := record_of_line(line, data.line(number), data.room):
                del line  # frees its memory while the record is used
                yield record


CONTAINER = Lines()
