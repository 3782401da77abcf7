"""The F1 of the words that the answer shares with the right one, from 0 to 1. `token_f1:COLUMN`: its column.

SQuAD's definition (Rajpurkar et al. 2016, evaluation script of version 1.1): case, punctuation and the English articles
do not count.
"""

from __future__ import annotations

import re
import string
from collections import Counter

from featherback.runs.rewards.base import Answer, Reward, best

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TokenF1(Reward):
    def judge(self, answer: Answer) -> float:
        return best(answer, self.argument, token_f1)


def token_f1(text: str, right: str) -> float:
    """Return the F1 of two texts' words. Without a shared word it is 0."""
    found, wanted = _words(text), _words(right)
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


REWARD = TokenF1
