"""1 if a regular expression is found in the answer; else 0.

If the expression has a group named `answer`, its text must be the right answer too.
"""

from __future__ import annotations

import re
from typing import ClassVar

from featherback.errors import FeatherbackError
from featherback.runs.rewards.base import Answer, Limits, Reward, expected

GROUP = "answer"


class Regex(Reward):
    needs: ClassVar[str | None] = "PATTERN"

    def __init__(self, argument: str, limits: Limits) -> None:
        super().__init__(argument, limits)
        try:
            self._pattern = re.compile(argument, re.DOTALL)
        except re.error as error:
            raise FeatherbackError(f"The reward regex:{argument} is not a regular expression: {error}.") from None

    def judge(self, answer: Answer) -> float:
        match = self._pattern.search(answer.text)
        if match is None or GROUP not in self._pattern.groupindex:
            return float(match is not None)
        return float((match[GROUP] or "").strip() == expected(answer.record).strip())


REWARD = Regex
