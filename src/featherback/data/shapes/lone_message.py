"""{"role": ..., "content": ...}: a message without its conversation, which is known in order to be refused."""

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
            'a message outside a conversation; write each conversation as an object {"messages": [...]}, one a line.'
        )


SHAPE = LoneMessage()
