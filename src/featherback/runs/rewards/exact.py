"""1 if the answer is a right one, apart from case and white space at its ends; else 0. `exact:COLUMN`: its column."""

from __future__ import annotations

from featherback.runs.rewards.base import Answer, Reward, best


class Exact(Reward):
    def judge(self, answer: Answer) -> float:
        return best(answer, self.argument, lambda text, right: float(_plain(text) == _plain(right)))


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


REWARD = Exact
