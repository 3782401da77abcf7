"""Alpaca: {"instruction": ..., "input": ..., "output": ...}, optionally with "system". The output is supervised."""

from __future__ import annotations

from collections.abc import Set

from featherback.data.example import Example
from featherback.data.shapes.base import Row, Shape, answer_text, optional_text, structure, text
from featherback.errors import FeatherbackError


class Alpaca(Shape):
    precedence = 40
    keys = frozenset({"instruction", "input", "output", "system", "history"})
    expects = '"instruction" with "output"'

    def fits(self, keys: Set[str]) -> bool:
        return "instruction" in keys

    def read(self, row: Row, where: str) -> Example:
        instruction, given = text(row, "instruction"), optional_text(row, "input")
        prompt = instruction if given is None else f"{instruction}\n\n{given}"
        if structure(row, "history"):
            raise FeatherbackError('"history" is not supported; write the conversation as "messages".')
        return Example(where, prompt=prompt, completion=answer_text(row, "output"), system=optional_text(row, "system"))


SHAPE = Alpaca()
