"""1 if the last number of the answer is the last number of the right one; else 0. `numeric:COLUMN`: its column."""

from __future__ import annotations

import math
import re

from featherback.errors import FeatherbackError, excerpt
from featherback.runs.rewards.base import Answer, Reward, expected

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+]?\.\d+")
RELATIVE = 1e-6


class Numeric(Reward):
    def judge(self, answer: Answer) -> float:
        right = last_number(text := expected(answer.record, self.argument))
        if right is None:
            raise FeatherbackError(f"The reward numeric needs a number in the right answer, which is {excerpt(text)}.")
        found = last_number(answer.text)
        return float(found is not None and math.isclose(found, right, rel_tol=RELATIVE, abs_tol=1e-12))


def last_number(text: str) -> float | None:
    """Return the last number in a text; None without one. Commas may separate thousands."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


REWARD = Numeric
