"""Options of learning from the model's own answers: what judges them."""

from __future__ import annotations

from dataclasses import dataclass

from featherback.core.options import Panel, option
from featherback.core.sizes import MB
from featherback.runs import parse
from featherback.runs.rewards.base import Limits


@dataclass(frozen=True, kw_only=True)
class RolloutOptions(Panel):
    title = "Rewards"

    reward: tuple[str, ...] | None = option(
        None,
        help="What judges the answers that the model writes, for --objective grpo and its kin: exact, numeric, "
        "token_f1, rouge_l, regex:PATTERN, json_schema:FILE, command:COMMAND or reasoning_gym:TASK. A number before it "
        "is its weight: 0.2*regex:PATTERN. Repeat the option to add up several.",
        parse=parse.rewards,
        several=True,
        metavar="[WEIGHT*]KIND[:ARGUMENT]",
    )
    reward_seconds: float = option(
        10.0, above=0, help="The most seconds that a reward's program may take for an answer. Then its reward is 0."
    )
    reward_memory: int = option(
        512, least=16, help="The most megabytes that a reward's program may take for an answer. Then its reward is 0."
    )

    @property
    def reward_limits(self) -> Limits:
        """What the program of a reward may use for an answer."""
        return Limits(self.reward_seconds, self.reward_memory * MB)
