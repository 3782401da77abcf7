"""1 if the answer is the right one, apart from case and white space at its ends; else 0. `exact:COLUMN`: its column."""

from __future__ import annotations

from featherback.runs.rewards.base import Answer, Reward, expected


class Exact(Reward):
    def judge(self, answer: Answer) -> float:
        return float(_plain(answer.text) == _plain(expected(answer.record, self.argument)))


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


REWARD = Exact
