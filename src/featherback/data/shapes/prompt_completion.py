"""{"prompt": ..., "completion": ...}: both text or both messages. The completion is supervised.

"label" says whether the answer is wanted, or is a label of both. Without a completion it is the label of the prompt.
Only objectives on labels use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from featherback.data.example import Example
from featherback.data.shapes.base import Row, Shape, answer_text, optional_text, structure, text
from featherback.data.shapes.tools import tools_of
from featherback.data.shapes.turns import conversation, turns
from featherback.errors import FeatherbackError


class PromptCompletion(Shape):
    precedence = 30
    keys = frozenset({"prompt", "completion", "system", "tools", "label"})
    expects = '"prompt" with "completion"'

    def fits(self, keys: Set[str]) -> bool:
        return "prompt" in keys or "completion" in keys

    def read(self, row: Row, where: str) -> Example:
        given, answer = structure(row, "prompt"), structure(row, "completion")
        if answer is None and row.get("label") is not None:
            return self._asked_only(row, where, given)
        if isinstance(given, list) and given and isinstance(given[0], Mapping) and isinstance(answer, str) and answer:
            answer = [{"role": "assistant", "content": answer}]
        if isinstance(given, list) and isinstance(answer, list):
            asked, unused = turns(given, "prompt")
            said, others = turns(answer, "completion")
            untrained = [{**turn, "weight": 0} if turn["role"] == "assistant" else turn for turn in asked]
            messages = conversation([*untrained, *said], optional_text(row, "system"))
            return Example(
                where, messages=messages, tools=tools_of(row), unused=(*unused, *others), label=row.get("label")
            )
        if row.get("tools"):
            raise FeatherbackError('"tools" cannot be combined with a "prompt" that is text; write "messages" instead.')
        return Example(
            where,
            prompt=text(row, "prompt", may_be_empty=True),
            completion=answer_text(row, "completion"),
            system=optional_text(row, "system"),
            label=row.get("label"),
        )

    def _asked_only(self, row: Row, where: str, given: Any) -> Example:
        """Return a prompt with its label."""
        tools, system, label = tools_of(row), optional_text(row, "system"), row.get("label")
        if isinstance(given, list):
            asked, unused = turns(given, "prompt")
            messages = conversation(asked, system)
            return Example(where, messages=messages, tools=tools, unused=unused, label=label, is_open=True)
        return Example(where, prompt=text(row, "prompt"), system=system, tools=tools, label=label, is_open=True)


SHAPE = PromptCompletion()
