"""Shapes that records of data sets have, one module each: what a row says, and the example it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from typing import Any

from featherback.data.containers.base import Record
from featherback.data.example import Bad, Example
from featherback.data.shapes.base import Shape
from featherback.data.shapes.usual import usual_columns
from featherback.errors import FeatherbackError, shown
from featherback.registry import Registry
from featherback.terminal import quoted

SHAPES: Registry[Shape] = Registry(
    __name__, "SHAPE", "shape of data", shared=("base", "tools", "turns", "usual")
)

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
            turned = quoted(f"{column}={key}")
            raise FeatherbackError(f"--map wants what the data call it on the right: --map {turned}.")
        raise FeatherbackError(
            f"--map names {shown(key)}, which is no key of data; choose from {', '.join(known)}."
        )


@cache
def _in_order() -> list[Shape]:
    return sorted((SHAPES[name] for name in SHAPES.names), key=lambda shape: shape.precedence)


def _called(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    for key, column in columns.items():
        if column not in row:
            raise FeatherbackError(f"there is no column {shown(column)}, which --map names for {key!r}.")
    taken = set(columns.values()) | columns.keys()
    return {key: row[column] for key, column in columns.items()} | {
        key: value for key, value in row.items() if key not in taken
    }


def _unknown(row: Mapping[str, Any]) -> str:
    shapes = ", ".join(shape.expects for shape in _in_order() if shape.expects)
    keys = ", ".join(shown(key) for key in list(row)[:6]) or "none"
    example = "--map prompt=question, and again for others"
    return f"expected {shapes}; found the keys {keys}. --map says what is what: {example}."
