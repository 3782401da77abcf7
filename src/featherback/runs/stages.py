"""The stages of `featherback train` (`NEW` for a new run, `RESUMED` for a resumed one) and of `evaluate`.

Each stage is a function. It takes a value (a `StageValue`) and returns the value of the next stage. Two runners execute
the lists. The runner of the command line (`cli/begin.py`) starts a new program for most stages. Each program replaces
the one before, so `--memory` limits each separately, and values are passed as JSON. The runner of the Python API
(`runs/launch.py`) calls the same functions in its own process. Runners pass their tools to the stages as `StageTools`.

This module imports next to nothing, because a program's memory counts while it measures the training process.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from featherback.core.sizes import MB
from featherback.core.terminal import print_error
from featherback.data.source import STDIN
from featherback.runs.account import LEAST

if TYPE_CHECKING:
    from featherback.engine.host.machine import Baseline
    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig
    from featherback.runs.given import Examples, Prepare
    from featherback.runs.run_directory import RunDirectory

TEACHER, TEACHER_FILE = "teacher", "train.teacher"
"""Where a run stores information about its teacher: an entry of run.json, and a file beside its tokens."""


class StageValue:
    """What one stage passes to the next."""

    def to_json(self) -> dict[str, Any]:
        """Return the value as JSON, for a fresh program. `from_json` is the inverse."""
        raise NotImplementedError

    def with_least_memory(self) -> tuple[str, StageValue] | None:
        """Return the stage from which the command measures the least budget that is enough, and its value.

        None if the command cannot start over from here.
        """
        return None

    def abandon(self) -> None:
        """Delete what must not be left if the command ends here without a result."""


@dataclass(frozen=True)
class NewRunOptions(StageValue):
    """The options of a new run, and its plan if `--config` brought one."""

    config: TrainConfig
    plan: dict[str, Any] | None = None

    def with_least_memory(self) -> tuple[str, StageValue] | None:
        return "plan", NewRunOptions(replace(self.config, memory=LEAST))

    def to_json(self) -> dict[str, Any]:
        return {"config": self.config.to_json(), "plan": self.plan}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> NewRunOptions:
        from featherback.runs.config import TrainConfig

        return cls(TrainConfig.from_json(values["config"]), values["plan"])


class PlannedRun(NewRunOptions):
    """The options, completed for the model, and their plan."""

    def with_least_memory(self) -> None:
        """The plan fits, so what does not fit now needs more than the plan."""


@dataclass(frozen=True)
class ResumeOptions(StageValue):
    """The options with which the user resumes a run: fields of TrainConfig, including "model" and "out"."""

    options: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ResumeOptions:
        return cls(**values)


@dataclass(frozen=True)
class PreparedRun(StageValue):
    """A locked run directory that contains its data as tokens.

    `is_new`: the run is new, not resumed. `outgrown`: the data need a longer sequence length than the plan has.
    """

    run: RunDirectory
    is_new: bool
    outgrown: bool = False

    what = "Training"
    """What the plan is for, in the error about a budget that is too small."""

    @property
    def least_plan(self) -> int:
        """The least budget in bytes in which training fits, and before it the teacher's pass."""
        teacher = self.run.record.get(TEACHER, {}).get("plan") or {}
        return max(self.run.plan.least_mb or 0, teacher.get("least_mb") or 0) * MB

    @property
    def less_memory_advice(self) -> str:
        """A clause that says which options reduce memory."""
        from featherback.methods.memory.planner import less_memory_advice

        config = self.run.config
        return less_memory_advice(config.whole is None, config.batching.full > config.sequence)

    def settled(self, needed: int, budget: int | None) -> PreparedRun:
        """Record the least budget of the whole command, and the run's `budget` if that was searched for."""
        plan, config = self.run.plan, self.run.config
        changed: dict[str, Any] = {"plan": asdict(plan.within_command(needed))}
        if budget is None and self.is_new and isinstance(config.memory, int) and config.memory < needed:
            budget = needed  # the user asked for the most that is useful to the plan
        if budget is not None:
            changed["configuration"] = replace(config, memory=budget).to_json()
        self.run.update(**changed)
        return self

    def discard(self) -> None:
        """Delete the run, because it cannot begin."""
        self.run.delete()

    @property
    def is_approximate(self) -> bool:
        """Whether the plan approximates gradients, and their cosine was not measured for this plan yet."""
        found = self.run.plan.approximated if self.run.config.train == "lora" else {}
        return bool(found) and self.run.record.get("gradient", {}).get("approximated") != found

    @property
    def used_memory(self) -> bool:
        """Whether the stage before the description of the run may have used much of this program's memory."""
        return self.outgrown or bool(self.run.plan.approximated)

    @property
    def needs_reference(self) -> bool:
        """Whether the objective compares answers with their log-probabilities before training."""
        return self.run.config.criterion.needs_reference

    @property
    def needs_teacher(self) -> bool:
        """Whether the run has a teacher whose pass is not complete."""
        done = "seconds" in self.run.record.get(TEACHER, {}) and (self.run.tokens / TEACHER_FILE).exists()
        return self.run.config.teacher is not None and not done

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "run": str(self.run.path), "lock": self.run.pass_lock()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PreparedRun:
        from featherback.runs.run_directory import RunDirectory

        lock = values.pop("lock")
        return cls(**{**values, "run": RunDirectory.take(values["run"], lock)})


@dataclass(frozen=True)
class EvaluationOptions(StageValue):
    """The options of `featherback evaluate`."""

    model: str
    data: dict[str, Any]
    """A `data.source.Source` as JSON."""
    adapter: str | None
    quantize: str
    seq_len: int | None
    cut: bool
    compute: str
    threads: int | None
    memory: int | str | None
    objective: str
    began: float = field(default_factory=time.time)
    """Seconds since 1970."""

    def with_least_memory(self) -> tuple[str, StageValue] | None:
        if STDIN in self.data["paths"]:  # it can be read only once
            return None
        return "prepare_evaluation", replace(self, memory=LEAST)

    def to_json(self) -> dict[str, Any]:
        return vars(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> EvaluationOptions:
        return cls(**values)


@dataclass(frozen=True)
class PreparedEvaluation(StageValue):
    """The data of `featherback evaluate` as tokens in a temporary folder, how they were prepared, and a plan."""

    options: EvaluationOptions
    folder: str
    report: dict[str, Any]
    plan: dict[str, Any] | None = None

    is_new, what, less_memory_advice = True, "The evaluation", ""

    @property
    def least_plan(self) -> int:
        """The least budget in bytes in which a forward pass fits."""
        return ((self.plan or {}).get("least_mb") or 0) * MB

    def settled(self, needed: int, budget: int | None) -> PreparedEvaluation:
        """The budget of the whole command does not change the plan, which fits in it."""
        return self

    def abandon(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    discard = abandon

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "options": self.options.to_json()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PreparedEvaluation:
        return cls(**{**values, "options": EvaluationOptions.from_json(values["options"])})


@dataclass(frozen=True)
class StageTools:
    """The tools that a runner passes to the stages.

    `open`: opens a model like `models.load`. `baseline`: measures the memory of the training process before it opens a
    model. `prepare`: turns files into tokens. `examples`: examples from Python that replace files, under "train" and
    "eval". `note`: prints a message for the user. `flags`: the flags of the command.
    """

    open: Callable[..., Model]
    baseline: Callable[[], Baseline]
    prepare: Prepare
    examples: Mapping[str, Examples] = field(default_factory=dict)
    note: Callable[[str], None] = print_error
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """A stage of a command.

    `function`: the full name of its function, whose module is imported when the stage begins. `takes`: the type of its
    argument. `begins`: when the command starts a new program for it; the name of a property of the value means only if
    that is true. `measures`: takes the value as JSON and returns whether the program must measure the process of the
    last stage before it loads anything else. `closes_account`: before it, all that the command needs is known, and the
    budget is checked. `follows_plan`: it takes no more memory than the plan does. `process`: of the last stage, what
    its program is (`worker_process`).
    """

    function: str
    takes: type[NewRunOptions | ResumeOptions | PreparedRun | EvaluationOptions | PreparedEvaluation]
    begins: Literal[
        "always", "never", "outgrown", "is_approximate", "used_memory", "needs_reference", "needs_teacher"
    ] = "always"
    measures: Callable[[dict[str, Any]], bool] = lambda _: False
    closes_account: bool = False
    follows_plan: bool = False
    process: str = "worker"

    @property
    def name(self) -> str:
        """The stage's name: the name of its function."""
        return self.function.rpartition(".")[2]

    def begins_with(self, value: Any) -> bool:
        """Return whether the command starts a new program for this stage, given its value."""
        return self.begins == "always" or (self.begins != "never" and getattr(value, self.begins))

    @property
    def of_command(self) -> bool:
        """Whether the stage belongs to the command line only, not to the Python API."""
        return self.function.startswith("featherback.cli.")

    def __call__(self, value: Any, means: StageTools) -> Any:
        """Run the stage and return the next value. Raises FeatherbackError if the run cannot begin."""
        module, _, name = self.function.rpartition(".")
        return getattr(import_module(module), name)(value, means)


NEW = (
    # Check options, data files and the directory before anything is measured, converted or written.
    Stage("featherback.runs.launch.check", NewRunOptions),
    # Choose the plan: the fastest memory layout within the budget.
    Stage("featherback.runs.launch.plan", NewRunOptions, measures=lambda asked: asked["plan"] is None),
    # Make the run directory, and write the data to it as tokens.
    Stage("featherback.runs.launch.prepare", PlannedRun),
    # Choose the sequence length from the data if the user gave none, with a plan for it; hold examples out.
    Stage("featherback.runs.launch.settle", PreparedRun, begins="outgrown", measures=lambda _: True),
    # If the plan approximates gradients: measure their cosine with the exact ones.
    Stage("featherback.runs.cosine.measure_cosine", PreparedRun, begins="is_approximate", follows_plan=True),
    # For distillation: choose the plan of the teacher's pass.
    Stage("featherback.runs.teaching.plan_teacher", PreparedRun, begins="needs_teacher", measures=lambda _: True),
    # Print data, machine and plan. A --dry-run ends here and deletes what was made.
    Stage("featherback.cli.begin.show", PreparedRun, begins="used_memory", closes_account=True),
    # For preferences: compute the log-probabilities of all answers before training.
    Stage("featherback.runs.reference.reference", PreparedRun, begins="needs_reference"),
    # For distillation: store the teacher's most likely tokens.
    Stage("featherback.runs.teaching.teach", PreparedRun, begins="needs_teacher"),
    # Replace this program by the training process, `featherback.worker`.
    Stage("featherback.cli.begin.train", PreparedRun, begins="never"),
)
"""The stages of a new run."""

RESUMED = (
    Stage("featherback.runs.resumed.check_again", ResumeOptions),
    # Lock the run and override its options by the user's; make a new plan if they need one.
    # Without such options the plan usually stays, so nothing is measured.
    Stage(
        "featherback.runs.resumed.reopen_run",
        ResumeOptions,
        measures=lambda named: bool(named["options"].keys() - {"model", "out"}),
    ),
    *NEW[-6:],
)
"""The stages of a resumed run."""

EVALUATION = (
    # Write the data as tokens to a temporary folder.
    Stage("featherback.runs.evaluating.prepare_evaluation", EvaluationOptions),
    # Choose the fastest memory layout of a forward pass within the budget.
    Stage("featherback.runs.evaluating.plan_evaluation", PreparedEvaluation, measures=lambda _: True),
    # Measure the loss, and print it.
    Stage("featherback.cli.measured.measure", PreparedEvaluation, closes_account=True, process="evaluation"),
)
"""The stages of an evaluation."""

COMMANDS = (NEW, RESUMED, EVALUATION)
"""The stages of every command that runs as a list of stages."""
