"""Builds dataclasses from JSON values, strictly by their type hints. Errors name the file and the path of a bad entry.

A file that `encode` wrote has an entry for every field, and no others. Checks that involve several fields belong to the
dataclass's `__post_init__`, which raises FeatherbackError.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from featherback.errors import FeatherbackError, excerpt

T = TypeVar("T")
MOST = 2**53
"""Upper bound of the numbers that are added up."""
Count = Annotated[int, 0]
Positive = Annotated[int, 1]
Amount = Annotated[float, 0]
Number = Annotated[float, -MOST]
"""Types with a lower bound; the upper bound is MOST. A tuple in its place lists the only values."""
encode = asdict
"""Returns a dataclass as JSON values."""
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list",
          dict: "an object", types.NoneType: "null"}  # fmt: skip
"""Types of JSON values in messages."""


def decode(kind: type[T], values: Any, file: object) -> T:
    """Return a `kind` made from the JSON values in `file`. Raises FeatherbackError if they do not fit it exactly."""
    found: T = _decode(kind, values, f"{file}:")
    return found


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a JSON value is a number that is finite and small enough to be added up."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MOST


def _decode(kind: Any, value: Any, at: str) -> Any:
    """Return the value of a field of this type. `at`: its file and path."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        return _instance(kind, _typed(dict, value, at), at)
    if origin in (Union, types.UnionType):
        return _decode(_closest(inner, value), value, at)
    if origin is Annotated:
        return _limited(_decode(inner[0], value, at), inner[1], at)
    if origin is Literal:
        return _limited(_typed(str, value, at), inner, at)
    if origin in (list, tuple):
        kinds = inner if origin is tuple and inner[-1] is not ... else inner[:1] * len(_typed(list, value, at))
        if len(_typed(list, value, at)) != len(kinds):
            raise _wrong(at, value, f"a list of {len(kinds)}")
        return origin(_decode(each, part, f"{at}[{i}]") for i, (each, part) in enumerate(zip(kinds, value)))
    if origin in (dict, Mapping):
        pairs = [(name, each, _child(at, name)) for name, each in _typed(dict, value, at).items()]
        return {_decode(inner[0], name, path): _decode(inner[1], each, path) for name, each, path in pairs}
    return _typed(kind, value, at)


def _typed(kind: type, value: Any, at: str) -> Any:
    """Return a JSON value if it has this type. Numbers must be finite."""
    also = {float: int, list: tuple}.get(kind)
    if type(value) not in (kind, also) or (kind is float and not abs(value) <= sys.float_info.max):
        raise _wrong(at, value, _NAMES[kind])
    return value


def _limited(value: Any, limit: Any, at: str) -> Any:
    """Return a value if it is one of `limit`, or a number from `limit` to MOST."""
    named = isinstance(limit, tuple)
    if not (value in limit if named else limit <= value <= MOST):
        raise _wrong(at, value, f"one of: {', '.join(limit)}" if named else f"from {limit} to {MOST}")
    return value


def _instance(kind: Any, values: dict[str, Any], at: str) -> Any:
    hints = _hints(kind)
    if different := values.keys() ^ hints.keys():
        name = min(different)
        problem = "is missing" if name in hints else "is not known to this version of Featherback"
        raise FeatherbackError(f"{_child(at, name)} {problem}.")
    found = {name: _decode(hint, values[name], _child(at, name)) for name, hint in hints.items()}
    try:
        made = kind(**found)
    except FeatherbackError as error:
        raise FeatherbackError(f"{at.removesuffix(':')}: {error}") from None
    for name, value in found.items():
        if (own := getattr(made, name)) != value:  # `__post_init__` completes or normalises what users write
            raise _wrong(_child(at, name), value, excerpt(own))
    return made


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, with their limits."""
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: hints[each.name] for each in fields(kind)}


def _closest(kinds: tuple[Any, ...], value: Any) -> Any:
    """Return the alternative of a union that a value is checked against."""
    if value is None and types.NoneType in kinds:
        return types.NoneType
    kinds = tuple(kind for kind in kinds if kind is not types.NoneType)
    if isinstance(value, dict):
        return min(kinds, key=lambda kind: len(getattr(kind, "__dataclass_fields__", {}).keys() ^ value.keys()))
    return next((kind for kind in kinds if type(value) in (kind, get_origin(kind))), kinds[0])


def _child(at: str, name: str) -> str:
    return f"{at} {name}" if at.endswith(":") else f"{at}.{name}"


def _wrong(at: str, value: Any, expected: str) -> FeatherbackError:
    return FeatherbackError(f"{at.removesuffix(':')} is {excerpt(value)}; it must be {expected}.")
