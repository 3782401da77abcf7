"""Find the question and the answer among columns with common names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from featherback.core.naming import argument
from featherback.errors import FeatherbackError, excerpt, near

_QUESTIONS = ("prompt", "instruction", "question", "query", "request")
_LESS_USUAL_QUESTIONS = (("input",), ("prompts", "instructions", "questions", "queries", "q", "user", "human"))
_ANSWERS = ("completion", "output", "answer", "response", "reply")
_LESS_USUAL_ANSWERS = ("completions", "outputs", "answers", "responses", "replies", "a", "assistant", "bot", "gpt")
"""Each group is looked for only if the groups before it are missing."""
_BESIDE = ("input", "context")
"""Text that an instruction refers to."""
_SHAPED = ({"messages"}, {"conversations"}, {"text"}, {"chosen", "rejected"}, {"prompt", "completion"})
_ALPACA = {"instruction", "output"}
_LONGEST = 40  # characters of a column's name that an error repeats in an option


def usual_columns(row: Mapping[str, Any]) -> dict[str, str]:
    """Map keys of a shape ("prompt") to the row's columns ("question"), where the names differ.

    The result is empty if the row already has a shape's keys, or if no question or no answer was found. If several
    columns could be the question or the answer, a FeatherbackError lists the options to choose one.
    """
    if any(keys <= row.keys() for keys in (*_SHAPED, _ALPACA)):
        return {}
    names: dict[str, list[str]] = {}
    for column in row:
        names.setdefault(column.strip().lower(), []).append(column)

    def found(known: tuple[str, ...]) -> list[str]:
        return [column for name in known for column in names.get(name, ())]

    beside, answers = found(_BESIDE), found(_ANSWERS) or found(_LESS_USUAL_ANSWERS)
    questions = next(filter(None, map(found, (_QUESTIONS, *_LESS_USUAL_QUESTIONS))), [])
    beside = [column for column in beside if column not in questions]
    if not questions or not answers:
        return {}
    follows = questions[0].strip().lower() == "instruction"
    keys = ("instruction", "output", "input") if follows or beside else ("prompt", "completion")
    columns = dict(zip(keys, (questions[0], answers[0], *beside), strict=False))
    for several, what in ((questions, "question"), (answers, "answer"), (beside, "input")):
        if len(several) > 1:
            raise FeatherbackError(
                f"the columns {' and '.join(map(excerpt, several[:3]))} could each be the {what}. Choose the columns "
                f"to read: {map_options(columns)}."
            )
    if beside and not follows:
        pair = {"prompt": questions[0], "completion": answers[0]}
        raise FeatherbackError(
            f"the column {excerpt(beside[0])} may be part of the question. To train with it: {map_options(columns)}. "
            f"To train without it: {map_options(pair)}."
        )
    return {key: column for key, column in columns.items() if key != column}


def map_options(columns: Mapping[str, str]) -> str:
    """The options that read these columns, to paste."""
    return argument("map", [f"{key}={column}" for key, column in columns.items()])


def likely_pair(columns: Sequence[str]) -> dict[str, str]:
    """Guess which of unknown columns are prompt and completion: by similar names, then by their order.

    Long names and missing columns are replaced by the placeholder COLUMN.
    """
    questions = [name for group in (_QUESTIONS, *_LESS_USUAL_QUESTIONS) for name in group if len(name) > 1]
    answers = [name for name in (*_ANSWERS, *_LESS_USUAL_ANSWERS) if len(name) > 1]
    free = list(columns)
    pair = dict[str, str]()
    for column in columns:
        similar = near(column, [*questions, *answers], 1)
        key = "prompt" if similar and similar[0] in questions else "completion"
        if similar and key not in pair:
            pair[key] = column
            free.remove(column)
    found = {}
    for key in ("prompt", "completion"):
        column = pair.get(key) or (free.pop(0) if free and len(columns) == 2 else "COLUMN")
        found[key] = column if len(column) <= _LONGEST else "COLUMN"
    return found
