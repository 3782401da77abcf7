"""{"anchor": ..., "positive": ..., "negative": ...}: a text, one that is alike, and perhaps some that are not.

"negative" may be a text or a list of texts. Data sets for Sentence Transformers also call the anchor "query", and
number several negatives: "negative_1".
"""

from __future__ import annotations

import re
from collections.abc import Set

from featherback.data.example import Example
from featherback.data.shapes.base import Row, Shape, structure, text
from featherback.errors import FeatherbackError

_NUMBERED = re.compile(r"negative_\d+")


class Anchors(Shape):
    precedence = 12
    keys = frozenset({"anchor", "query", "positive", "negative", "negatives"})
    expects = '"anchor" with "positive"'

    def fits(self, keys: Set[str]) -> bool:
        return "positive" in keys and bool({"anchor", "query"} & keys)

    def read(self, row: Row, where: str) -> Example:
        first = "anchor" if "anchor" in row else "query"
        texts = [text(row, first), text(row, "positive")]
        for key in row:
            if key in ("negative", "negatives") or _NUMBERED.fullmatch(key):
                texts += self._negatives(row, key)
        chain = None
        for each in reversed(texts):
            chain = Example(where, text=each, rejected=chain)
        assert chain is not None
        return chain

    def example(self, row: Row, where: str) -> Example:
        found = super().example(row, where)
        unused = tuple(key for key in found.unused if not _NUMBERED.fullmatch(key))
        return Example(**{**vars(found), "unused": unused})

    def _negatives(self, row: Row, key: str) -> list[str]:
        value = structure(row, key)
        if value in (None, "", []):
            return []
        listed = value if isinstance(value, list) else [row[key]]
        if not all(isinstance(each, str) and each for each in listed):
            raise FeatherbackError(f'"{key}" must be a text or a list of texts, none of them empty.')
        return listed


SHAPE = Anchors()
