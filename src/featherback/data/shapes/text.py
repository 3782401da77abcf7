"""{"text": ...}: all of it is supervised. "label" is its label, which only objectives on labelled texts use."""

from __future__ import annotations

from collections.abc import Set

from featherback.data.example import Example
from featherback.data.shapes.base import Row, Shape, optional_text, text
from featherback.errors import FeatherbackError


class Text(Shape):
    precedence = 50
    keys = frozenset({"text", "system", "label"})
    expects = 'or "text"'

    def fits(self, keys: Set[str]) -> bool:
        return "text" in keys

    def read(self, row: Row, where: str) -> Example:
        if optional_text(row, "system") is not None:
            raise FeatherbackError('"system" cannot be combined with "text"; put it into the text.')
        return Example(where, text=text(row, "text"), label=row.get("label"))


SHAPE = Text()
