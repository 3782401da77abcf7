"""A function from Python, which `featherback.train(reward=...)` passes: (answer, record) -> number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from featherback.errors import FeatherbackError
from featherback.runs.rewards.base import Answer, Reward


class Python(Reward):
    needs: ClassVar[str | None] = "NAME"
    _function: Callable[[str, Mapping[str, Any]], float]

    def use(self, functions: Mapping[str, Callable[[str, Mapping[str, Any]], float]]) -> None:
        """Take the function from those that were passed, by name."""
        if self.argument not in functions:
            raise FeatherbackError(
                f"The reward {self.argument} is a function, which only Python can pass: "
                f"featherback.train(..., reward={self.argument}), with resume=True to continue a run."
            )
        self._function = functions[self.argument]

    def judge(self, answer: Answer) -> float:
        found = self._function(answer.text, answer.record)
        if not isinstance(found, (int, float)):
            raise FeatherbackError(f"The reward {self.argument} returned {found!r}; it must return a number.")
        return float(found)


REWARD = Python
