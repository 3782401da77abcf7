"""{"chosen": ..., "rejected": ...}: pairs of answers, which are known in order to be refused."""

from __future__ import annotations

from collections.abc import Set
from typing import NoReturn

from featherback.data.shapes.base import Row, Shape
from featherback.errors import FeatherbackError


class Preferences(Shape):
    precedence = 0
    keys = frozenset({"chosen", "rejected"})

    def fits(self, keys: Set[str]) -> bool:
        return self.keys <= keys

    def read(self, row: Row, where: str) -> NoReturn:
        raise FeatherbackError(
            'a preference pair ("chosen" and "rejected"), from which no method here learns; to train on the answers '
            'that were chosen, write them as "messages", or as "prompt" and "completion".'
        )


SHAPE = Preferences()
