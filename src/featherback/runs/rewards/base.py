"""The interface of rewards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from featherback.errors import FeatherbackError

EXPECTED = ("answer", "completion", "output", "target", "solution", "response", "label")
"""Keys of a record that may hold the right answer; the first one that it has counts."""


@dataclass(frozen=True)
class Answer:
    """An answer of the model. `record`: the record of its prompt. `ended`: whether the model ended it itself."""

    text: str
    record: Mapping[str, Any]
    ended: bool = True


@dataclass(frozen=True)
class Limits:
    """What a program that judges an answer may use."""

    seconds: float
    memory: int  # bytes


class Reward(ABC):
    """Judges answers. `argument`: what follows the kind and a colon: "PATTERN" in `regex:PATTERN`; "" for nothing.

    Raises FeatherbackError for an argument that is not acceptable.
    """

    needs: ClassVar[str | None] = None
    """The argument in messages, if there must be one: "PATTERN"."""

    def __init__(self, argument: str, limits: Limits) -> None:
        self.argument, self.limits = argument, limits

    def judge_all(self, answers: Sequence[Answer]) -> list[float]:
        """Return the reward of each answer."""
        return [self.judge(each) for each in answers]

    @abstractmethod
    def judge(self, answer: Answer) -> float:
        """Return the reward of an answer."""


def best(answer: Answer, key: str, compare: Callable[[str, str], float]) -> float:
    """Return the best of `compare(text, right)` over the right answers: a list in the data has several."""
    return max(compare(answer.text, right) for right in right_answers(answer.record, key))


def expected(record: Mapping[str, Any], key: str = "") -> str:
    """Return the right answer of a record as text. Arguments and errors are those of `right_answers`."""
    return str(_right(record, key))


def right_answers(record: Mapping[str, Any], key: str = "") -> list[str]:
    """Return the right answers of a record: of `key`, of the first key in `EXPECTED`, or its last message.

    Raises FeatherbackError if there is none.
    """
    found = _right(record, key)
    return [str(each) for each in found] if isinstance(found, list) and found else [str(found)]


def right_answer(record: Mapping[str, Any], key: str = "") -> str | None:
    """Return the first right answer of a record, to show it; None if there is none."""
    try:
        return right_answers(record, key)[0]
    except FeatherbackError:
        return None


def _right(record: Mapping[str, Any], key: str) -> Any:
    found = record.get(key) if key else next((record[each] for each in EXPECTED if record.get(each) is not None), None)
    messages = record.get("messages")
    if found is None and not key and isinstance(messages, list) and messages[-1].get("role") == "assistant":
        found = messages[-1].get("content")
    if found is None:
        names = ", ".join(record) or "nothing"
        wanted = f'"{key}"' if key else f"any of {', '.join(EXPECTED)}"
        raise FeatherbackError(
            f"A record of the data has no right answer to compare with: expected {wanted}; found {names}. Add it, or "
            "name its column: exact:COLUMN."
        )
    return found
