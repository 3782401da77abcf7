"""Shapes of records, one module each. A shape turns a row into an example."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from featherback.core.naming import argument
from featherback.core.registry import Registry
from featherback.data.containers.base import Record
from featherback.data.example import Bad, Example
from featherback.data.shapes.base import Shape, columns_shown
from featherback.data.shapes.beside import check_nothing_left, with_prompt
from featherback.data.shapes.published import standard_form
from featherback.data.shapes.rendered import check_not_rendered
from featherback.data.shapes.usual import likely_pair, map_options, usual_columns
from featherback.errors import FeatherbackError, did_you_mean, excerpt, expected, near

SHAPES: Registry[Shape] = Registry(
    __name__, "SHAPE", "shape of data", shared=("base", "beside", "published", "rendered", "tools", "turns", "usual")
)


Columns = Mapping[str, str]
"""Key of a shape -> column of the data."""

_MOST_WORDS = 4
_SENTENCE = re.compile(r".*[?!]|.*\s.*\s.*\.", re.DOTALL)
"""A column whose name has more words, or looks like a sentence, is probably a text: the header is missing."""


def example_of(record: Record, columns: Columns) -> Example | Bad:
    """Turn a record into an example, or return the problem.

    `columns` maps keys to columns; if it is empty, common column names are recognised.
    """
    usual: Columns = {}
    try:
        given = record.values if columns else standard_form(record.values)
        usual = {} if columns else usual_columns(given)
        values = with_prompt(renamed_columns(given, columns or usual))
        shape = next((shape for shape in _in_order() if shape.fits(values.keys())), None)
        if shape is None:
            raise FeatherbackError(_unknown(values))
        found = shape.example(values, record.where)
        if not columns:
            check_nothing_left(values, found)
            if found.text is not None:
                check_not_rendered(found.text, usual.get("text", "text"))
        return replace(found, renamed=tuple(usual.items()))
    except FeatherbackError as error:
        return Bad(record.where, _in_own_words(str(error), columns or usual))


def check_columns(columns: Columns) -> None:
    """Raise FeatherbackError for a key that no shape reads."""
    known = sorted({key for shape in _in_order() if shape.expects for key in shape.keys})
    for key, column in columns.items():
        if key in known:
            continue
        if column in known and not near(key, known, 1):
            turned = f"{column}={key}"
            raise FeatherbackError(
                f"{argument('map')} takes KEY=COLUMN, with the name of your column after the equals sign: "
                f"{argument('map', turned)}."
            )
        raise FeatherbackError(f"{argument('map')} names the unknown key {excerpt(key)}; {expected(key, known)}")


@cache
def _in_order() -> list[Shape]:
    return sorted((SHAPES[name] for name in SHAPES.names), key=lambda shape: shape.precedence)


def _in_own_words(problem: str, columns: Columns) -> str:
    """Name the user's column in an error that begins with a key: '"completion" is empty.'"""
    for key, column in columns.items():
        name = f'"{key}"'
        if key != column and problem.startswith(f"{name} "):
            return f"{excerpt(column)} (read as {name}){problem.removeprefix(name)}"
    return problem


def renamed_columns(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """Return a row with the keys of `columns`. Raises FeatherbackError if it lacks one of their columns."""
    for key, column in columns.items():
        if column not in row:
            asked, meant = argument("map", f"{key}={column}"), did_you_mean(near(column, row, 1))
            raise FeatherbackError(
                f"there is no column {excerpt(column)} for {asked}; the columns are {columns_shown(row)}.{meant}"
            )
    taken = set(columns.values()) | columns.keys()
    return {key: row[column] for key, column in columns.items()} | {
        key: value for key, value in row.items() if key not in taken
    }


def _unknown(row: Mapping[str, Any]) -> str:
    shapes = ", ".join(shape.expects for shape in _in_order() if shape.expects)
    if any(len(column.split()) > _MOST_WORDS or _SENTENCE.fullmatch(column.strip()) for column in row):
        return (
            f"{columns_shown(row)} do not look like column names. If the table has no header line, add one: "
            f"prompt,completion. Otherwise choose the columns: {map_options(likely_pair(row))}."
        )
    options = map_options(likely_pair(row))
    return f"expected {shapes}; found {columns_shown(row)}. To choose the columns: {options}."
