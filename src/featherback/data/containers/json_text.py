"""Parse JSON objects into records."""

from __future__ import annotations

import json
import re
from typing import Any

from featherback.data.containers.base import Record
from featherback.data.example import Bad
from featherback.data.record_size import MOST_VALUES, SHORT
from featherback.errors import excerpt

TOO_MANY = f"the example has more than {MOST_VALUES} lists, objects and other values. Split it"
_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
PYTHON = "in Python's notation, not JSON. Write it with json.dumps."
_PYTHON = re.compile(r"[\[{\s]*[{\[]\s*'")
_STRING = re.compile(r'"(?:[^"\\]+|\\.)*"?', re.DOTALL)


def record_of(text: str, where: str, line: int | None = None, column: int = 1) -> Record | Bad:
    """Parse a JSON object into a record, or return the problem.

    `line`, `column`: where the text begins in its file, for error messages. Without them it is a whole line.
    """
    try:
        values = parsed(text)
    except UnusableError as error:
        return Bad(where, f"{error}.")
    except json.JSONDecodeError as error:
        if comma := _wrong_comma(text, error.pos):
            return Bad(where, f"not valid JSON: {comma}")
        if is_python(text):
            return Bad(where, f"this is {PYTHON}")
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
    if isinstance(values, list) and values and isinstance(values[0], dict) and values[0].keys() & {"role", "from"}:
        return Bad(where, 'this is a conversation without a name. Write it as one object {"messages": [...]}.')
    if not isinstance(values, dict):
        return Bad(where, f"expected a JSON object, found {kind(values)}.")
    return Record(where, values)


def is_python(text: str) -> bool:
    """Whether a text that is not JSON is a list or dict as Python prints it, with single quotes."""
    return _PYTHON.match(text) is not None


def _wrong_comma(text: str, at: int) -> str | None:
    """Return a sentence about a comma that causes an error at a position, if there is one."""
    if text.startswith(",") or (at == len(text) - 1 and text.endswith(",")):
        return "a comma stands between objects. Remove it, or put the whole file in square brackets."
    before, after = text[:at].rstrip(), text[at : at + 100]
    if (before.endswith(",") or after.startswith(",")) and after.lstrip(", \t\r\n")[:1] in ("}", "]"):
        return f"a comma stands before a closing bracket, near {excerpt((before[-20:] + after)[:40])}. Remove it."
    return None


class UnusableError(ValueError):
    """JSON has the same key twice in an object, or too many values."""


def parsed(text: str) -> Any:
    """Parse JSON. Raises UnusableError, another ValueError or RecursionError."""
    if len(text) > SHORT and _has_too_many_values(text):
        raise UnusableError(TOO_MANY)
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise UnusableError(f"the key {excerpt(again)} appears twice in one object. Remove one of the two")
    return found


def _has_too_many_values(text: str) -> bool:
    """Whether more values begin in a text than a record may have. Each takes memory, however short it is."""
    if sum(map(text.count, ",[{")) <= MOST_VALUES:
        return False
    count = at = 0
    for match in _STRING.finditer(text):
        count += sum(text.count(mark, at, match.start()) for mark in ",[{")
        at = match.end()
        if count > MOST_VALUES:
            return True
    return count + sum(text.count(mark, at) for mark in ",[{") > MOST_VALUES


def kind(value: Any) -> str:
    """Return the type of a value in the words of JSON, such as "an object"."""
    return _NAMES.get(type(value), "a number")
