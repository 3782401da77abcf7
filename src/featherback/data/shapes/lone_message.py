"""{"role": ..., "content": ...}: a message without a conversation. It is recognised only to give a helpful error."""

from __future__ import annotations

from collections.abc import Set
from typing import NoReturn

from featherback.data.shapes.base import Row, Shape
from featherback.errors import FeatherbackError


class LoneMessage(Shape):
    precedence = 60
    keys = frozenset()

    def fits(self, keys: Set[str]) -> bool:
        return keys >= {"role", "content"} or keys >= {"from", "value"}

    def read(self, row: Row, where: str) -> NoReturn:
        raise FeatherbackError(
            'this is a single message, not a conversation. Write each conversation as one object {"messages": [...]}.'
        )


SHAPE = LoneMessage()
