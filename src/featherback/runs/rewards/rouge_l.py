"""ROUGE-L: the F1 of the longest sequence of words that the answer shares with the right one. `rouge_l:COLUMN`.

Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (2004), with equal weight for precision and recall. Words
are runs of letters and digits without case, and are not stemmed.
"""

from __future__ import annotations

import re

from featherback.runs.rewards.base import Answer, Reward, best

_WORD = re.compile(r"[^\W_]+")


class RougeL(Reward):
    def judge(self, answer: Answer) -> float:
        return best(answer, self.argument, rouge_l)


def rouge_l(text: str, right: str) -> float:
    """Return the ROUGE-L of two texts. Without a shared word it is 0."""
    found, wanted = _WORD.findall(text.lower()), _WORD.findall(right.lower())
    shared = _longest(found, wanted)
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0


def _longest(first: list[str], second: list[str]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for word in first:
        before = 0  # of the row before, one place to the left
        for place, other in enumerate(second, 1):
            above = row[place]
            row[place] = before + 1 if word == other else max(above, row[place - 1])
            before = above
    return row[-1]


REWARD = RougeL
