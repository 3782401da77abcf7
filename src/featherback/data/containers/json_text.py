"""A JSON object as a record."""

from __future__ import annotations

import json
from typing import Any

from featherback.data.containers.base import Record
from featherback.data.example import Bad
from featherback.errors import shown

_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}


def record_of(text: str, where: str, line: int | None = None, column: int = 1) -> Record | Bad:
    """The object that `text` is. `line`, `column`: where in a file it begins, to tell where a fault in it is; without
    them it is a line of its own."""
    try:
        values = parsed(text)
    except RepeatedKeyError as error:
        return Bad(where, f"{error}; readers differ in which of them they take: keep one.")
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


class RepeatedKeyError(ValueError):
    """An object with a key that is there twice."""


def parsed(text: str) -> Any:
    """The value that JSON spells. RepeatedKeyError, another ValueError or RecursionError if it cannot be read."""
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise RepeatedKeyError(f"the key {shown(again)} is there twice in one object")
    return found


def kind(value: Any) -> str:
    """What a value is, in JSON's words."""
    return _NAMES.get(type(value), "a number")
