"""What stands beside the answers of a record: no conversation and no question of it may be dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from featherback.core.naming import argument
from featherback.data.example import Example
from featherback.data.shapes.base import Row, columns_shown, structure
from featherback.data.shapes.turns import turns
from featherback.data.shapes.usual import is_answer_name, map_options
from featherback.errors import FeatherbackError, excerpt

CONVERSATIONS = ("messages", "conversations", "conversation", "dialog", "dialogue", "history")
"""Names of columns that hold conversations, besides "prompt"."""
_ANSWERING = ("assistant", "gpt", "model", "bot", "ai", "chatgpt")
_TURN = ({"role", "content"}, {"from", "value"})


def is_conversation(value: Any) -> bool:
    """Whether a value is a list of messages, or of pairs of question and answer; in tables, as JSON."""
    if isinstance(value, str):
        if value.lstrip()[:2] not in ("[{", "[["):
            return False
        value = structure({"": value}, "")
    if not isinstance(value, list) or not value:
        return False
    first = value[0]
    if isinstance(first, Mapping):
        return any(keys <= first.keys() for keys in _TURN)
    return isinstance(first, list) and len(first) == 2 and all(isinstance(each, str) for each in first)


def with_prompt(row: Row) -> Row:
    """Return a pair with its prompt, if that has another name: an instruction, or the conversation beside the answers.

    A single message as an answer becomes a list. Other rows are returned unchanged.
    """
    if not row.keys() >= {"chosen", "rejected"}:
        return row
    answers = {key: structure(row, key) for key in ("chosen", "rejected")}
    row = {**row, **{key: [each] for key, each in answers.items() if isinstance(each, Mapping)}}
    if row.get("prompt") not in (None, "", []):
        return row
    if isinstance(instruction := row.get("instruction"), str):
        given = row.get("input") or ""
        prompt: Any = f"{instruction}\n\n{given}" if isinstance(given, str) and given else instruction
        return _replaced(row, ("instruction", "input"), prompt)
    key = next((key for key in CONVERSATIONS if is_conversation(row.get(key))), None)
    if key is None or any(isinstance(each, list) and len(each) > 1 for each in answers.values()):
        return row  # the answers are whole conversations
    asked = structure(row, key)
    if not isinstance(asked[0], Mapping) or asked[-1].get("role", asked[-1].get("from")) in _ANSWERING:
        return row
    return _replaced(row, (key,), asked)


def _replaced(row: Row, keys: tuple[str, ...], prompt: Any) -> Row:
    return {**{key: value for key, value in row.items() if key not in keys}, "prompt": prompt}


def check_nothing_left(row: Row, example: Example) -> None:
    """Raise FeatherbackError if a column that is not used holds a conversation or the question or answer to one."""
    left = [key for key in example.unused if row.get(key) not in (None, "")]
    for key in left:
        if is_conversation(row[key]) and not any(_begins(each, row, key) for each in example.sides):
            raise FeatherbackError(
                f"the column {excerpt(key)} holds a conversation, which would not be trained on. Write the whole "
                f'conversation as "messages", choose the columns with {argument("map")}, or remove the column.'
            )
    messages = example.messages or []
    ends_open = bool(messages) and messages[-1]["role"] != "assistant" and not example.is_open
    if ends_open and (answers := [key for key in left if is_answer_name(key)]):
        raise FeatherbackError(
            f"the conversation ends with a question, and the column {excerpt(answers[0])} may hold the answer. Write "
            "it as the last message."
        )
    _check_question([key for key in left if isinstance(row[key], (str, list, Mapping))], row, example)


def _check_question(left: list[str], row: Row, example: Example) -> None:
    """Raise FeatherbackError if a pair has no question, although other columns may hold it."""
    said = [message for message in example.messages or () if message["role"] != "system"]
    asked = example.prompt if example.messages is None else said and said[0]["role"] != "assistant"
    if example.rejected is not None and not asked and left:
        columns = {"prompt": left[0], "chosen": "chosen", "rejected": "rejected"}
        raise FeatherbackError(
            f'"chosen" and "rejected" have no "prompt"; found {columns_shown(row)}. Choose the column of the question: '
            f"{map_options(columns)}."
        )


def _begins(example: Example, row: Row, key: str) -> bool:
    """Whether an example begins with the conversation in a column, so that nothing of it is lost."""
    value = structure(row, key)
    if not isinstance(value[0], Mapping):
        return False
    theirs = [(turn["role"], turn["content"]) for turn in turns(value, key)[0]]
    ours = [(turn["role"], turn["content"]) for turn in example.messages or ()]
    if example.messages is None:
        ours = [("user", example.prompt), ("assistant", example.completion)]
    return ours[: len(theirs)] == theirs
