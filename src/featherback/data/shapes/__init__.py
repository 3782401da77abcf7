"""Shapes that records of data sets have, one module each: what a row says, and the example it is."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from featherback.data.containers.base import Record
from featherback.data.example import Bad, Example
from featherback.data.shapes.base import MissingError, Shape
from featherback.errors import FeatherbackError, expected, shown
from featherback.naming import argument
from featherback.registry import Registry

SHAPES: Registry[Shape] = Registry(__name__, "SHAPE", "shape of data", shared=("base", "tools", "turns"))

_PAIRS = (("prompt", "completion"), ("instruction", "output"))
_USUAL = {
    "prompt": ("question", "query", "request"),
    "completion": ("answer", "response", "reply"),
    "instruction": (),
    "output": ("response", "answer"),
}
"""Key that we read -> what many data sets call it."""

Columns = Mapping[str, str]
"""Key that a shape reads -> the column of the data that holds it."""


def example_of(record: Record, columns: Columns) -> Example | Bad:
    """What a record is, its columns called as `columns` says."""
    try:
        values = _called(record.values, columns)
        shape = next((shape for shape in _in_order() if shape.fits(values.keys())), None)
        if shape is None:
            raise FeatherbackError(_unknown(values))
        return shape.example(values, record.where)
    except MissingError as error:
        maps = None if columns else _maps(record.values)
        return Bad(
            record.where, f"{error} {argument('map')} says what is what: {maps}." if maps else str(error)
        )
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
        raise FeatherbackError(
            f"{argument('map')} names {shown(key)}, which is no key of data; {expected(key, known)}"
        )


@cache
def _in_order() -> list[Shape]:
    return sorted((SHAPES[name] for name in SHAPES.names), key=lambda shape: shape.precedence)


def _called(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    for key, column in columns.items():
        if column not in row:
            raise FeatherbackError(
                f"there is no column {shown(column)}, which {argument('map')} names for {key!r}."
            )
    taken = set(columns.values()) | columns.keys()
    return {key: row[column] for key, column in columns.items()} | {
        key: value for key, value in row.items() if key not in taken
    }


def _unknown(row: Mapping[str, Any]) -> str:
    shapes = ", ".join(shape.expects for shape in _in_order() if shape.expects)
    keys = ", ".join(shown(key) for key in list(row)[:6]) or "none"
    maps = _maps(row) or f"{argument('map', 'prompt=question')}, and again for others"
    return f"expected {shapes}; found the keys {keys}. {argument('map')} says what is what: {maps}."


def _maps(row: Mapping[str, Any]) -> str | None:
    """The options that make an example of a record whose keys are called as many data sets call them."""
    for pair in _PAIRS:
        columns = {key: _meant(key, row) for key in pair}
        if all(columns.values()):
            return argument("map", [f"{key}={column}" for key, column in columns.items() if key != column])
    return None


def _meant(key: str, row: Mapping[str, Any]) -> str | None:
    """The column of a record that may be this key."""
    names = {column.strip().lower(): column for column in row}
    return next((names[name] for name in (key, *_USUAL[key]) if name in names), None)
