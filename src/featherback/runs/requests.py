"""What `train` and `evaluate` are asked for, and what their preparation makes: records passed between processes.

This module imports next to nothing, because the process that waits for the others holds what it imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from featherback.core.sizes import MB
from featherback.runs.account import Account

if TYPE_CHECKING:
    from featherback.engine.budget import BudgetError


class TrainingRequest(NamedTuple):
    """What `featherback train` is to do.

    `options`: all options of a TrainConfig as JSON, or with `resume` those that the user gave. `plan`: a memory plan
    that was made earlier for these options. `json`, `profile`, `dry_run`: as the user set them.
    """

    options: dict[str, Any]
    resume: bool = False
    plan: dict[str, Any] | None = None
    json: bool = False
    profile: bool = False
    dry_run: bool = False

    @property
    def memory(self) -> int | str | None:
        """The budget that the user gave."""
        memory: int | str | None = self.options.get("memory")
        return memory

    @property
    def log_to(self) -> tuple[str, ...]:
        """The programs that the run is logged to."""
        return tuple(self.options.get("log_to") or ())

    @property
    def keeps_plan(self) -> bool:
        """Whether a resumed run keeps its plan, as usual if no option is changed."""
        return self.resume and self.options.keys() <= {"model", "out"}


class EvaluationRequest(NamedTuple):
    """What `featherback evaluate` is to do: its options, of which `data` is a `data.source.Source` as JSON."""

    model: str
    data: dict[str, Any]
    adapter: str | None
    quantize: str
    seq_len: int | None
    cut: bool
    compute: str
    threads: int | None
    memory: int | str | None
    objective: str
    device: str
    vram: int | None
    rewards: dict[str, Any] | None = None
    """What judges answers that the model writes, as fields of `runs.evaluating.Judging`; None: nothing does."""
    json: bool = False
    began: float = 0.0
    """Seconds since 1970."""

    @property
    def log_to(self) -> tuple[str, ...]:
        return ()

    @property
    def keeps_plan(self) -> bool:
        return False


class ComparisonRequest(NamedTuple):
    """What `featherback compare` is to do.

    `candidates`: their names, the first is what the others are compared with. `answers`, `losses`: for each candidate,
    how its answers are judged, and how its held-out loss is measured.
    `general`: for each candidate, how general instructions are answered and the loss on general text is measured; or
    nothing. `at_least`: metric -> what every other candidate
    must reach. `shown`: prompts whose answers are shown.
    """

    candidates: tuple[str, ...]
    answers: tuple[EvaluationRequest, ...]
    losses: tuple[EvaluationRequest, ...]
    general: tuple[tuple[EvaluationRequest, EvaluationRequest], ...]
    at_least: dict[str, float]
    shown: int
    json: bool


class PreparedRun(NamedTuple):
    """A run directory that contains its data as tokens, and a plan.

    `passes`: those that are to be run before training (`runs/passes.py`).
    """

    request: TrainingRequest
    path: str
    account: Account
    passes: tuple[str, ...]


class PreparedEvaluation(NamedTuple):
    """The data of `featherback evaluate` as tokens in a temporary folder, how they were prepared, and a plan."""

    request: EvaluationRequest
    folder: str
    report: dict[str, Any]
    plan: dict[str, Any]

    @property
    def least_plan(self) -> int:
        """The least budget in bytes in which a forward pass fits."""
        return (self.plan.get("least_mb") or 0) * MB


class Refusal(NamedTuple):
    """Why a command does not fit in its budget, and the account of what it needs.

    `limit`: the budget in bytes. `size`: the memory of the command's last process. `is_complete`: whether the account
    knows what all of the command needs.
    """

    what: str
    limit: int
    advice: str
    request: TrainingRequest | EvaluationRequest
    size: tuple[int, int] | None
    account: Account
    is_complete: bool

    @classmethod
    def of(
        cls,
        error: BudgetError,
        request: TrainingRequest | EvaluationRequest,
        size: tuple[int, int] | None,
        account: Account,
        is_complete: bool,
    ) -> Refusal:
        """Return the refusal that an error means in this process."""
        account.add(error.needed)
        account.add_own()
        return cls(error.what, error.limit, error.advice, request, size, account, is_complete)

    def error(self) -> BudgetError:
        """Return the error, which names the amount that is needed."""
        from featherback.engine.budget import BudgetError

        return BudgetError(self.what, self.limit, self.account.needed, self.advice)
