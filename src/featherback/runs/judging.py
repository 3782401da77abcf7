"""The reward of a model on prompts: it writes the likeliest answer to each, and rewards judge it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from featherback.core.naming import argument
from featherback.core.sizes import MB
from featherback.data.prompts import PromptFile
from featherback.data.tokenizers.loader import tokenizer_bytes
from featherback.errors import FeatherbackError
from featherback.methods.memory.dry_run import BlankAdapter
from featherback.nn.objectives import OBJECTIVES
from featherback.nn.objectives.sampled import Sampled
from featherback.runs.evaluation import Evaluation, Graded
from featherback.runs.panels.optimisation import NEXT_TOKEN
from featherback.runs.rewards.base import Limits, right_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from featherback.infer.rollouts import Writing
    from featherback.methods.memory.job import Job
    from featherback.methods.memory.plan import Plan
    from featherback.models.adapter import Adapter
    from featherback.models.model import Model
    from featherback.runs.rewards.judge import Function

OBJECTIVE = "grpo"
"""The objective whose data are prompts, if only rewards are given."""


@dataclass(frozen=True)
class Judging:
    """What judges answers, and how long they may be."""

    rewards: tuple[str, ...]
    """Empty: those that suit the data (`rewards/suited.py`)."""
    answer_tokens: int
    seconds: float
    memory: int  # bytes

    def writing(self, job: Job, model: Model, capacity: int, answers: int) -> Writing:
        """Return what the planner needs to know of the answers."""
        from featherback.infer.rollouts import Writing

        adapter = None if job.form is None else BlankAdapter(job.layout, draws=False)
        return Writing(model, adapter, capacity, answers, self.answer_tokens, tokenizer_bytes(model.path))

    def measure(
        self, model: Model, adapter: Adapter | None, tokens: PromptFile, plan: Plan, check: Callable[[], None],
        functions: Mapping[str, Function] | None = None, column: str = "",
    ) -> Evaluation:  # fmt: skip
        """Return the mean reward over a token file of prompts. `column`: of right answers, "" for the usual ones."""
        from featherback.infer.rollouts import Desk, layout_of
        from featherback.runs.rewards.judge import Judge
        from featherback.runs.rewards.suited import suited
        from featherback.runs.rollouts import Pen, evaluated

        assert plan.slots is not None
        rewards = self.rewards or suited([tokens.record(i) for i in range(len(tokens))], column)
        judge = Judge(rewards, Limits(self.seconds, self.memory), functions)
        desk = Desk(model, adapter, tokens.longest, plan.compute, layout_of(plan), min(plan.slots, len(tokens)))
        pen = Pen(desk, judge, self.answer_tokens)
        graded, _ = evaluated(pen, tokens, check)
        answers = [
            Graded(
                pen.tokenizer.decode(tokens.prompt(i).tolist()),
                text,
                right_answer(tokens.record(i), column),
                dict(zip(judge.labels, scores.tolist())),
            )
            for i, (text, scores) in enumerate(zip(graded.texts, graded.scores.T, strict=True))
        ]
        return Evaluation(0.0 - graded.measures["reward"], len(tokens), graded.measures, "prompts", answers)


def rewards_of(
    rewards: tuple[str, ...] | None, objective: str, answer_tokens: int, seconds: float, megabytes: int
) -> dict[str, Any] | None:
    """Return the fields of a Judging; None if nothing judges answers. Raises FeatherbackError if something must."""
    writes = issubclass(OBJECTIVES[objective], Sampled)
    if rewards is None and writes:
        raise FeatherbackError(
            f"{argument('objective', objective)} measures the reward of answers, so it needs something that judges "
            f"them: add {argument('reward', 'numeric')}, for example."
        )
    if rewards is not None and not writes and objective != NEXT_TOKEN:
        raise FeatherbackError(
            f"{argument('objective', objective)} and {argument('reward')} measure different things; remove one of them."
        )
    return None if rewards is None else judging_fields(rewards, answer_tokens, seconds, megabytes)


def judging_fields(rewards: tuple[str, ...], answer_tokens: int, seconds: float, megabytes: int) -> dict[str, Any]:
    """Return the fields of a Judging."""
    return asdict(Judging(rewards, answer_tokens, seconds, megabytes * MB))


def judging_objective(name: str) -> str:
    """Return the objective whose data are prompts: `name`, unless it is the default."""
    return OBJECTIVE if name == NEXT_TOKEN else name


def judging_of(values: Mapping[str, Any] | None) -> Judging | None:
    """Return the Judging with these fields, which may come from JSON."""
    if values is None:
        return None
    found = Judging(**values)
    return replace(found, rewards=tuple(found.rewards))
