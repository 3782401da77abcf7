"""The base class of shapes, and functions to read their fields."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from typing import Any, ClassVar

from featherback.core.naming import argument
from featherback.data.containers.json_text import PYTHON, UnusableError, is_python, kind, parsed
from featherback.data.example import Example
from featherback.errors import FeatherbackError, excerpt

Row = Mapping[str, Any]
_MOST_SHOWN = 6  # columns in an error


class Shape(ABC):
    """A shape of records. Errors are raised as FeatherbackError, without the place of the record."""

    precedence: ClassVar[int]
    """If a record fits several shapes, the one with the lowest precedence is used."""
    keys: ClassVar[frozenset[str]]
    """All keys that the shape reads."""
    expects: ClassVar[str] = ""
    """The keys that a record must have, for error messages; empty if records of this shape are rejected."""

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    @abstractmethod
    def fits(self, keys: Set[str]) -> bool:
        """Whether a record with these keys has this shape."""

    @abstractmethod
    def read(self, row: Row, where: str) -> Example:
        """Turn a row into an example."""

    def example(self, row: Row, where: str) -> Example:
        """Turn a row into an example, with the name of this shape and the unused keys."""
        found = self.read(row, where)
        unused = *(key for key in row if key not in self.keys and row[key] is not None), *found.unused
        return Example(**{**vars(found), "shape": self.name, "unused": unused})


def text(row: Row, key: str, may_be_empty: bool = False) -> str:
    """Return a field that must be a string."""
    if key not in row:
        raise FeatherbackError(
            f'"{key}" is missing; found {columns_shown(row)}. If it has another name in your data, '
            f"use {argument('map', f'{key}=COLUMN')}."
        )
    value = row[key]
    if not isinstance(value, str):
        raise FeatherbackError(f'"{key}" must be a string, not {kind(value)}.')
    if not value and not may_be_empty:
        raise FeatherbackError(f'"{key}" is empty.')
    return value


def answer_text(row: Row, key: str) -> str:
    """Return an answer: a string, or a number or truth value, which is written as in JSON."""
    value = row.get(key)
    if isinstance(value, (bool, int, float)) and math.isfinite(value):
        return json.dumps(value)
    return text(row, key)


def columns_shown(row: Row) -> str:
    """The first columns of a row, as an error lists them."""
    names = ", ".join(excerpt(key) for key in list(row)[:_MOST_SHOWN]) or "none"
    return f"{names}, ..." if len(row) > _MOST_SHOWN else names


def optional_text(row: Row, key: str) -> str | None:
    """Return a field that must be a string, or None if it is missing, null or empty."""
    return text(row, key) if row.get(key) not in (None, "") else None


def structure(row: Row, key: str) -> Any:
    """Return a field, parsed if it is JSON in a string, as in tables."""
    value = row.get(key)
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return parsed(value)
        except UnusableError as error:
            raise FeatherbackError(f'in "{key}", {error}.') from None
        except (ValueError, RecursionError) as error:
            if is_python(value):
                raise FeatherbackError(f'"{key}" is {PYTHON}') from None
            raise FeatherbackError(f'"{key}" is not valid JSON: {error}.') from None
    return value
