"""Reject JSON schemas that would take a grammar seconds or hundreds of megabytes, before it is compiled.

llguidance has limits of its own. They stop a schema with thousands of optional properties, or with several large
`multipleOf`, only after the work is done: four of them, in 200 bytes, took a minute and 3.5 GB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from featherback.errors import FeatherbackError

MOST_BYTES, MOST_BYTES_IN_BUDGET = 64_000, 8_000
"""The longest schema as JSON, and the longest one within a memory budget, which reserves room for it."""
_MOST_OPTIONAL = 300  # properties of an object that are not required; the work grows with the square of their number
_MOST_MULTIPLE, _MOST_MULTIPLES = 1000, 10_000  # the largest multipleOf, and the largest product of all of them
_FINEST = 10**6  # denominator of a multipleOf such as 0.01


def check_size(schema: Mapping[str, Any], most_bytes: int = MOST_BYTES) -> None:
    """Raise FeatherbackError if a schema is too large to be followed."""
    if (size := len(json.dumps(schema))) > most_bytes:
        raise FeatherbackError(f"The schema has {size} bytes; at most {most_bytes} are supported.")
    product = 1
    for each in _objects(schema):
        if (multiple := _multiple(each)) is not None:
            product *= multiple.numerator
            if multiple.numerator > _MOST_MULTIPLE or multiple.denominator > _FINEST or product > _MOST_MULTIPLES:
                raise FeatherbackError(
                    f"The schema has a multipleOf of {each['multipleOf']}; at most {_MOST_MULTIPLE} is supported, and "
                    f"{_MOST_MULTIPLES} for the product of all of them."
                )
        properties, required = each.get("properties"), each.get("required", ())
        if isinstance(properties, dict) and isinstance(required, (list, tuple)):
            optional = len(properties) - sum(name in properties for name in required if isinstance(name, str))
            if optional > _MOST_OPTIONAL:
                raise FeatherbackError(
                    f"The schema has an object with {optional} optional properties; at most {_MOST_OPTIONAL} are "
                    "supported."
                )


def _objects(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all objects in a schema."""
    left: list[Any] = [schema]
    while left:
        each = left.pop()
        if isinstance(each, Mapping):
            yield each
        if isinstance(each, (Mapping, list)):
            left.extend(each.values() if isinstance(each, Mapping) else each)


def _multiple(each: Mapping[str, Any]) -> Fraction | None:
    """Return the multipleOf of an object; None if it has no number there, as if it is the name of a property."""
    value = each.get("multipleOf")
    return Fraction(str(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
