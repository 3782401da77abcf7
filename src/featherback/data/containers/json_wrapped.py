"""One JSON object that holds a list of records: {"train": [...]}. It is read element by element, as an array is."""

from __future__ import annotations

import re

from featherback.data.containers.json_array import Array
from featherback.data.containers.json_objects import WRAPPED

_MORE = re.compile(rb"\[\s*\{")


class Wrapped(Array):
    title = "JSON list in an object"
    nothing = "only an empty list"
    level = 2
    wrong_end = "the object holds more than one list. Save the list to train on as a file of its own."

    def fits(self, begin: bytes) -> bool:
        return WRAPPED.match(begin) is not None

    def is_wrong_end(self, rest: bytearray) -> bool:
        return _MORE.search(rest) is not None or not rest.strip().endswith(b"}")


CONTAINER = Wrapped()
