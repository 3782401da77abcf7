"""{"messages": [{"role": ..., "content": ...}, ...]}, optionally with "system" and "tools". Answers are supervised.

"label" is the label of the conversation, which only objectives on labelled texts use.
"""

from __future__ import annotations

from collections.abc import Set

from featherback.data.example import Example
from featherback.data.shapes.base import Row, Shape, optional_text, structure
from featherback.data.shapes.rendered import is_rendered, turns_in
from featherback.data.shapes.tools import tools_of
from featherback.data.shapes.turns import conversation, turns


class Messages(Shape):
    precedence = 10
    keys = frozenset({"messages", "system", "tools", "functions", "label"})
    expects = '"messages"'
    _key = "messages"

    def fits(self, keys: Set[str]) -> bool:
        return self._key in keys

    def read(self, row: Row, where: str) -> Example:
        given = row[self._key]
        given = turns_in(given) if is_rendered(given) else structure(row, self._key)
        said, unused = turns(given, self._key)
        messages = conversation(said, optional_text(row, "system"))
        return Example(where, messages=messages, tools=tools_of(row), unused=unused, label=row.get("label"))


SHAPE = Messages()
