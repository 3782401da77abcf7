"""The scores of a task of the package reasoning-gym: `reasoning_gym:chain_sum`. Records are those of its data sets."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar

from featherback.errors import FeatherbackError, expected
from featherback.runs.rewards.base import Answer, Limits, Reward


class ReasoningGym(Reward):
    needs: ClassVar[str | None] = "TASK"

    def __init__(self, argument: str, limits: Limits) -> None:
        super().__init__(argument, limits)
        if find_spec("reasoning_gym") is None:
            raise FeatherbackError(
                f"The reward reasoning_gym:{argument} needs reasoning-gym, which is not installed: pip install "
                "reasoning-gym."
            )
        from reasoning_gym.factory import DATASETS, create_dataset

        if argument not in DATASETS:
            raise FeatherbackError(
                f"Unknown task {argument!r} of reasoning-gym; {expected(argument, sorted(DATASETS))}"
            )
        self._task = create_dataset(argument, size=1, seed=0)

    def judge(self, answer: Answer) -> float:
        return float(self._task.score_answer(answer.text.strip(), dict(answer.record)))


REWARD = ReasoningGym
