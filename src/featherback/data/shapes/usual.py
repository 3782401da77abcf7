"""Columns called as many data sets call them: which of them are the question and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from featherback.core.naming import argument
from featherback.errors import FeatherbackError, shown

_QUESTIONS = ("prompt", "instruction", "question", "query", "request")
_ANSWERS = ("completion", "output", "answer", "response", "reply")
_BESIDE = ("input", "context")
"""What an instruction is about; without a question, "input" is one."""
_SHAPED = ({"messages"}, {"conversations"}, {"text"}, {"chosen", "rejected"}, {"prompt", "completion"})
_ALPACA = {"instruction", "output"}


def usual_columns(row: Mapping[str, Any]) -> dict[str, str]:
    """Key that a shape reads -> the column of the row, for each that is called otherwise.

    None if the keys are known, or if no question, or no answer, is among them.

    FeatherbackError, with the options to choose by, if several columns could be the question or the answer.
    """
    if any(keys <= row.keys() for keys in (*_SHAPED, _ALPACA)):
        return {}
    names: dict[str, list[str]] = {}
    for column in row:
        names.setdefault(column.strip().lower(), []).append(column)

    def found(known: tuple[str, ...]) -> list[str]:
        return [column for name in known for column in names.get(name, ())]

    beside, answers = found(_BESIDE), found(_ANSWERS)
    questions = found(_QUESTIONS) or found(("input",))
    beside = [column for column in beside if column not in questions]
    if not questions or not answers:
        return {}
    follows = questions[0].strip().lower() == "instruction"
    keys = ("instruction", "output", "input") if follows or beside else ("prompt", "completion")
    columns = dict(zip(keys, (questions[0], answers[0], *beside), strict=False))
    for several, what in ((questions, "question"), (answers, "answer"), (beside, "input")):
        if len(several) > 1:
            raise FeatherbackError(
                f"the columns {' and '.join(map(shown, several[:3]))} could each be the {what}. {argument('map')} says "
                f"which is: {maps(columns)}."
            )
    if beside and not follows:
        raise FeatherbackError(
            f"the column {shown(beside[0])} stands beside {shown(questions[0])} and {shown(answers[0])}. "
            f"{argument('map')} says what is what: {maps(columns)}, or without the last."
        )
    return {key: column for key, column in columns.items() if key != column}


def maps(columns: Mapping[str, str]) -> str:
    """The options that read these columns."""
    return argument("map", [f"{key}={column}" for key, column in columns.items()])
