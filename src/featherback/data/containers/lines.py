"""Turn lines of JSON into records."""

from __future__ import annotations

from featherback.data.containers.base import Record, not_utf8
from featherback.data.containers.json_text import record_of
from featherback.data.example import Bad
from featherback.data.record_size import MOST_RECORD, RawSize, RecordRoom, admits_raw


def record_of_line(line: bytes | RawSize, where: str, room: RecordRoom) -> Record | Bad | None:
    """Parse a line; None if it is blank, or does not fit in the memory budget. RawSize: only its size is known."""
    if isinstance(line, RawSize):
        if line.size > MOST_RECORD:
            return Bad(where, f"the example is longer than {MOST_RECORD >> 20} MB. Split it.")
        room.admits(where, line.size, line.reading, line.at_most)
        return None
    if not admits_raw(room, where, line):
        return None
    try:
        text = line.decode().strip()
    except UnicodeDecodeError:
        return Bad(where, not_utf8())
    return record_of(text, where) if text else None
