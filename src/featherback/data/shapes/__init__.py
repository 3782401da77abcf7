"""Shapes that records of data sets have, one module each: what a row says, and the example it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from typing import Any

from featherback.core.naming import argument
from featherback.core.registry import Registry
from featherback.data.containers.base import Record
from featherback.data.example import Bad, Example
from featherback.data.shapes.base import Shape
from featherback.data.shapes.usual import usual_columns
from featherback.errors import FeatherbackError, expected, shown

SHAPES: Registry[Shape] = Registry(__name__, "SHAPE", "shape of data", shared=("base", "tools", "turns", "usual"))

_LONGEST = 40
"""Characters of a column's name that is shown in an example."""

Columns = Mapping[str, str]
"""Key that a shape reads -> the column of the data that holds it."""


def example_of(record: Record, columns: Columns) -> Example | Bad:
    """What a record is, its columns called as `columns` says, or without any as is usual."""
    try:
        usual = {} if columns else usual_columns(record.values)
        values = _called(record.values, columns or usual)
        shape = next((shape for shape in _in_order() if shape.fits(values.keys())), None)
        if shape is None:
            raise FeatherbackError(_unknown(values))
        return replace(shape.example(values, record.where), renamed=tuple(usual.items()))
    except FeatherbackError as error:
        return Bad(record.where, str(error))


def check_columns(columns: Columns) -> None:
    """FeatherbackError for a key that no shape reads."""
    known = sorted({key for shape in _in_order() if shape.expects for key in shape.keys})
    for key, column in columns.items():
        if key in known:
            continue
        if column in known and not get_close_matches(key, known, 1):
            turned = f"{column}={key}"
            raise FeatherbackError(
                f"{argument('map')} wants what the data call it on the right: {argument('map', turned)}."
            )
        raise FeatherbackError(f"{argument('map')} names {shown(key)}, which is no key of data; {expected(key, known)}")


@cache
def _in_order() -> list[Shape]:
    return sorted((SHAPES[name] for name in SHAPES.names), key=lambda shape: shape.precedence)


def _called(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    for key, column in columns.items():
        if column not in row:
            raise FeatherbackError(f"there is no column {shown(column)}, which {argument('map')} names for {key!r}.")
    taken = set(columns.values()) | columns.keys()
    return {key: row[column] for key, column in columns.items()} | {
        key: value for key, value in row.items() if key not in taken
    }


def _unknown(row: Mapping[str, Any]) -> str:
    shapes = ", ".join(shape.expects for shape in _in_order() if shape.expects)
    keys = ", ".join(shown(key) for key in list(row)[:6]) or "none"
    example = argument("map", _pairs(row))
    if len(row) != 2:
        example += ", and again for others"
    return f"expected {shapes}; found the keys {keys}. {argument('map')} says what is what: {example}."


def _pairs(row: Mapping[str, Any]) -> list[str]:
    """An example of what to say of these columns: both of two, else the first."""
    free = [key for key in ("prompt", "completion") if key not in row] or ["prompt"]
    columns = [column for column in row if column not in ("prompt", "completion")][: 2 if len(row) == 2 else 1]
    if not columns or max(map(len, columns)) > _LONGEST:
        columns = ["question"]
    return [f"{key}={column}" for key, column in zip(free, columns, strict=False)]
