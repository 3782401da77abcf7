"""JSON objects one after another in any layout, for example on several lines each, or one with the list of records."""

from __future__ import annotations

import re
from collections.abc import Iterator

from featherback.data.containers.base import Record
from featherback.data.containers.json_array import Array
from featherback.data.containers.json_scanner import Scanner
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.errors import FeatherbackError, excerpt

_LISTS = ("train", "data", "examples", "rows", "items", "records", "samples", "instances", "dataset")
_MOST_HEAD = 4000  # bytes of a beginning that may not be the whole file
SPLITS = (*_LISTS, "test", "validation", "valid", "val", "dev", "eval")
"""Names of a list of records in an object that is the whole file."""
WRAPPED = re.compile(rb'\{\s*"(%b)"\s*:\s*\[\s*(\{|\])' % "|".join(SPLITS).encode())


class Objects(Array):
    title = "JSON objects"
    suffixes = (".json", ".jsonl", ".ndjson")
    nothing = "only an empty list"
    level, after, whole = 0, "", "object"

    def fits(self, begin: bytes) -> bool:
        return begin.startswith(b"{") and not is_line(begin) and not WRAPPED.match(begin)

    def records(self, element: Record | Bad, data: Input) -> Iterator[Record | Bad]:
        if isinstance(element, Bad):
            yield element
            return
        lists = {key: value for key, value in element.values.items() if key in SPLITS and _is_list_of_objects(value)}
        if len(lists) > 1:
            raise FeatherbackError(
                f"{data.name} holds several lists: {', '.join(map(excerpt, lists))}. Save the list to train on as a "
                "file of its own."
            )
        for key, values in lists.items():
            for number, each in enumerate(values, 1):
                where = f"{data.name}, record {number} of {excerpt(key)}"
                yield Record(where, each) if isinstance(each, dict) else Bad(where, "expected a JSON object.")
        if not lists:
            yield element


def is_line(begin: bytes) -> bool:
    """Whether the first line is one whole object, its end is not to be seen, or the next line is one whole object."""
    if WRAPPED.match(begin):
        return False
    line, ends, rest = begin.partition(b"\n")
    scanner = Scanner(level=0)
    objects = list(scanner.elements(line))
    if not ends and len(begin) >= _MOST_HEAD:
        return len(objects) < 2
    following = rest.lstrip().partition(b"\n")[0]
    return _is_object(following) if scanner.is_open else len(objects) < 2


def _is_object(line: bytes) -> bool:
    scanner = Scanner(level=0)
    return line.startswith(b"{") and len(list(scanner.elements(line))) == 1 and not scanner.rest.strip()


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


CONTAINER = Objects()
