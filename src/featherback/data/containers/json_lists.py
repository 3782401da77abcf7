"""Read the lists called "messages" in a JSON file, wherever they stand in it, message by message."""

from __future__ import annotations

import re
from collections.abc import Iterator

from featherback.data.containers.base import NOT_UTF8, Record
from featherback.data.containers.json_array import rest_fits
from featherback.data.containers.json_scanner import Scanner
from featherback.data.containers.json_text import record_of
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.record_size import admits_raw

_LIST = re.compile(rb'(?<!\\)"messages"\s*:\s*\[')
_LONGEST_HEAD = 256  # bytes of what _LIST finds


def message_records(data: Input) -> Iterator[tuple[int, Record | Bad]]:
    """Yield the messages, each with the number of its list."""
    scanner: Scanner | None = None
    rest, chat, number = b"", 0, 1
    for piece in data.pieces():
        rest += piece
        while True:
            if scanner is None:
                found = _LIST.search(rest)
                if found is None:
                    rest = rest[-_LONGEST_HEAD:]
                    break
                scanner, rest, chat, number = Scanner(), rest[found.end() - 1 :], chat + 1, 1
            current = scanner
            for element in current.elements(rest):
                if element.strip() and admits_raw(data.room, where := _place(data, chat, number), element):
                    yield chat, _parsed(element, where)
                number += 1
            if current.is_open:
                rest = b""
                if not rest_fits(data, current, _place(data, chat, number)):
                    return
                break
            scanner, rest = None, bytes(current.rest)
    if scanner is not None:
        where = _place(data, chat, number)
        yield chat, Bad(where, "the list of messages has no closing bracket; the file may be incomplete.")


def _place(data: Input, chat: int, number: int) -> str:
    return f"{data.name}, message {number}" + (f" of chat {chat}" if chat > 1 else "")


def _parsed(element: bytes, where: str) -> Record | Bad:
    try:
        return record_of(element.decode().strip(), where, 1)
    except UnicodeDecodeError:
        return Bad(where, NOT_UTF8)
