"""Parse JSON objects into records."""

from __future__ import annotations

import json
from typing import Any

from featherback.data.containers.base import Record
from featherback.data.example import Bad
from featherback.errors import excerpt

_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}


def record_of(text: str, where: str, line: int | None = None, column: int = 1) -> Record | Bad:
    """Parse a JSON object into a record, or return the problem.

    `line`, `column`: where the text begins in its file, for error messages. Without them it is a whole line.
    """
    try:
        values = parsed(text)
    except RepeatedKeyError as error:
        return Bad(where, f"{error}. Remove one of the two.")
    except json.JSONDecodeError as error:
        if line is None:
            return Bad(
                where,
                f"not valid JSON: {error.msg.removesuffix(' at')} at column {error.colno}. Each line must be a JSON "
                "object, or the whole file one JSON array.",
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
    """A JSON object has the same key twice."""


def parsed(text: str) -> Any:
    """Parse JSON. Raises RepeatedKeyError, another ValueError or RecursionError if it is invalid."""
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise RepeatedKeyError(f"the key {excerpt(again)} appears twice in one object")
    return found


def kind(value: Any) -> str:
    """Return the type of a value in the words of JSON, such as "an object"."""
    return _NAMES.get(type(value), "a number")
