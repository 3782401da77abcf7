"""{"chosen": ..., "rejected": ...}, usually with "prompt": pairs of a better and a worse answer.

All are text or messages. Without "prompt", the prompt is what chosen and rejected have in common at their beginning,
up to the start of a word.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence, Set
from typing import Any

from featherback.data.containers.json_text import kind
from featherback.data.example import Example
from featherback.data.shapes.base import Row, Shape, optional_text, structure, text
from featherback.data.shapes.tools import tools_of
from featherback.data.shapes.turns import conversation, turns
from featherback.errors import FeatherbackError, excerpt

_GIVEN = ("ref_chosen_logps", "ref_rejected_logps")


class Preferences(Shape):
    precedence = 0
    keys = frozenset({"prompt", "chosen", "rejected", "system", "tools", *_GIVEN})
    expects = '"chosen" with "rejected"'

    def fits(self, keys: Set[str]) -> bool:
        return keys >= {"chosen", "rejected"}

    def read(self, row: Row, where: str) -> Example:
        good, bad = structure(row, "chosen"), structure(row, "rejected")
        if any(isinstance(each, list) for each in (good, bad, structure(row, "prompt"))):
            return self._chats(row, where, good, bad)
        if row.get("tools"):
            raise FeatherbackError('"tools" cannot be combined with answers that are text; write messages instead.')
        good, bad, system = text(row, "chosen"), text(row, "rejected"), optional_text(row, "system")
        if row.get("prompt") is None:
            prompt = good if good == bad else good[: _boundary(good, bad)]
            good, bad = good[len(prompt) :], bad[len(prompt) :]
        else:
            prompt = text(row, "prompt", may_be_empty=True)
        worse = Example(where, prompt=prompt, completion=bad, system=system)
        return Example(where, prompt=prompt, completion=good, system=system, rejected=worse, reference=_given(row))

    def _chats(self, row: Row, where: str, good: Any, bad: Any) -> Example:
        (good, unused), (bad, others) = (_said(each, key) for each, key in ((good, "chosen"), (bad, "rejected")))
        asked = structure(row, "prompt")
        given: tuple[str, ...] = ()
        if isinstance(asked, list):
            prompt, given = turns(asked, "prompt")
            if good[: len(prompt)] == prompt == bad[: len(prompt)]:
                good, bad = good[len(prompt) :], bad[len(prompt) :]
        else:
            # If both are equal, the last message is the answer.
            prompt = good[: _common(good, bad) - (good == bad)]
            good, bad = good[len(prompt) :], bad[len(prompt) :]
            if not prompt and asked is not None:
                prompt = [{"role": "user", "content": text(row, "prompt")}]
        for answer, key in ((good, "chosen"), (bad, "rejected")):
            if good != bad and not any(turn["role"] == "assistant" for turn in answer):
                raise FeatherbackError(f'"{key}" has no message of the assistant after the prompt.')
        untrained = [{**turn, "weight": 0} if turn["role"] == "assistant" else turn for turn in prompt]
        system, tools = optional_text(row, "system"), tools_of(row)
        better, worse = (
            Example(where, messages=conversation([*untrained, *answer], system), tools=tools) for answer in (good, bad)
        )
        extra = tuple(dict.fromkeys((*given, *unused, *others)))
        return Example(
            where, messages=better.messages, tools=tools, rejected=worse, unused=extra, reference=_given(row)
        )


def _said(answer: Any, key: str) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the messages of an answer and their unused keys. A text is one message of the assistant."""
    if isinstance(answer, str) and answer:
        return [{"role": "assistant", "content": answer}], ()
    return turns(answer, key)


def _boundary(good: str, bad: str) -> int:
    """Return the last place in the common beginning where both texts begin a word, with the space before it."""
    return next((at for at in range(_common(good, bad), 0, -1) if _begins(good, at) and _begins(bad, at)), 0)


def _begins(text: str, at: int) -> bool:
    """Whether a word begins at a place of a text, or its space, or a character of a script without spaces."""
    before, after = text[at - 1], text[at : at + 1]
    if before.isspace():
        return before == "\n" and not after.isspace()
    return not after or after.isspace() or (_is_written_alone(before) and _is_written_alone(after))


def _is_written_alone(char: str) -> bool:
    """Whether a character belongs to Chinese or Japanese writing, which has no spaces between words."""
    return unicodedata.east_asian_width(char) == "W" and unicodedata.category(char) in ("Lo", "Po", "Ps", "Pe")


def _common(good: Sequence[Any], bad: Sequence[Any]) -> int:
    """Return the number of characters, or of messages, with which both begin."""
    return next((i for i, (one, other) in enumerate(zip(good, bad)) if one != other), min(len(good), len(bad)))


def _given(row: Row) -> tuple[float, float] | None:
    """Return the log-probabilities before training, if the row has both."""
    values = [row.get(key) for key in _GIVEN]
    if None in values or "" in values:
        return None
    found = []
    for key, value in zip(_GIVEN, values):
        try:
            number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or not -1e9 < number <= 0:
            shown = excerpt(value) if isinstance(value, str) else f"{value!r}" if number is not None else kind(value)
            raise FeatherbackError(f'"{key}" is {shown}; it must be a log-probability, 0 or less.')
        found.append(number)
    return found[0], found[1]


SHAPE = Preferences()
