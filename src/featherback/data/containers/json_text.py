"""A JSON object as a record."""

from __future__ import annotations

import json
from typing import Any

from featherback.data.containers.base import Record
from featherback.data.example import Bad

_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}


def record_of(text: str, where: str, line: int | None = None, column: int = 1) -> Record | Bad:
    """The object that `text` is. `line`, `column`: where in a file it begins, to tell where a fault in it is; without
    them it is a line of its own."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        if line is None:
            return Bad(
                where,
                f"not valid JSON: {error.msg.removesuffix(' at')} at column {error.colno}; each line is an object, or "
                "the file an array of them.",
            )
        at = error.colno + (column - 1 if error.lineno == 1 else 0)
        place = f"line {line + error.lineno - 1}, column {at}"
        return Bad(where, f"not valid JSON: {error.msg} ({place}).")
    except (ValueError, RecursionError) as error:
        return Bad(where, f"not valid JSON: {error}.")
    if not isinstance(values, dict):
        return Bad(where, f"expected a JSON object, found {kind(values)}.")
    return Record(where, values)


def kind(value: Any) -> str:
    """What a value is, in JSON's words."""
    return _NAMES.get(type(value), "a number")
