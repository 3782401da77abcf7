"""What a shape is, and how its fields are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from typing import Any, ClassVar

from featherback.data.containers.json_text import kind, parsed
from featherback.data.example import Example
from featherback.errors import FeatherbackError

Row = Mapping[str, Any]


class Shape(ABC):
    """A shape of records. What is wrong with one is a FeatherbackError without its place."""

    precedence: ClassVar[int]
    """Of several shapes that a record could have it has the one where this is least."""
    keys: ClassVar[frozenset[str]]
    """All that it reads."""
    expects: ClassVar[str] = ""
    """The keys a record must have, in words; empty for one that is refused."""

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    @abstractmethod
    def fits(self, keys: Set[str]) -> bool:
        """Whether a record with these keys has this shape."""

    @abstractmethod
    def read(self, row: Row, where: str) -> Example:
        """The example that a row is."""

    def example(self, row: Row, where: str) -> Example:
        """The same, with this shape's name and what is not used of the row."""
        found = self.read(row, where)
        unused = *(key for key in row if key not in self.keys and row[key] is not None), *found.unused
        return Example(**{**vars(found), "shape": self.name, "unused": unused})


def text(row: Row, key: str, may_be_empty: bool = False) -> str:
    """A field that must be a string."""
    if key not in row:
        raise FeatherbackError(f'"{key}" is missing.')
    value = row[key]
    if not isinstance(value, str):
        raise FeatherbackError(f'"{key}" must be a string, not {kind(value)}.')
    if not value and not may_be_empty:
        raise FeatherbackError(f'"{key}" is empty.')
    return value


def optional_text(row: Row, key: str) -> str | None:
    """A field that may be missing, null or empty."""
    return text(row, key) if row.get(key) not in (None, "") else None


def structure(row: Row, key: str) -> Any:
    """A field that may be JSON spelled as a string, as tables have it."""
    value = row.get(key)
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return parsed(value)
        except (ValueError, RecursionError) as error:
            raise FeatherbackError(f'"{key}" is not valid JSON: {error}.') from None
    return value
