"""`featherback train` as a list of stages: `NEW` for a new run, `RESUMED` for one that goes on (below).

Each stage is a function that takes a value (`Asked`, `Named`, `Planned`, `Prepared`) and returns the next stage's. Two
runners go through a list. That of the command (`cli/begin.py`) starts a new program for most stages; it replaces the
program before it, so `--memory` bounds each one by itself, and values pass between them as JSON. That of the Python API
(`runs/launch.py`) calls the same functions in its own process. A runner passes its tools to the stages as `Means`.

This module imports next to nothing: a program's memory counts while it measures the training process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from featherback.core.terminal import complain

if TYPE_CHECKING:
    from featherback.engine.host.machine import Baseline
    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig
    from featherback.runs.given import Examples, Prepare
    from featherback.runs.run_directory import RunDirectory


@dataclass(frozen=True)
class Asked:
    """The options of a new run, and its plan, if one was given with them."""

    config: TrainConfig
    plan: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {"config": self.config.to_json(), "plan": self.plan}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Asked:
        from featherback.runs.config import TrainConfig

        return cls(TrainConfig.from_json(values["config"]), values["plan"])


class Planned(Asked):
    """The options, adjusted to the model, and the plan for them."""


@dataclass(frozen=True)
class Named:
    """The options that the user gave to resume the run in `out`: fields of TrainConfig, including "model" and "out"."""

    options: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Named:
        return cls(**values)


@dataclass(frozen=True)
class Prepared:
    """A run directory, locked, with its data as tokens.

    `is_new`: not resumed. `existed`: the directory existed before. `outgrown`: the plan is too small for the data.
    """

    run: RunDirectory
    is_new: bool
    existed: bool
    outgrown: bool = False

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "run": str(self.run.path), "lock": self.run.pass_lock()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Prepared:
        from featherback.runs.run_directory import RunDirectory

        lock = values.pop("lock")
        return cls(**{**values, "run": RunDirectory.take(values["run"], lock)})


@dataclass(frozen=True)
class Means:
    """The tools that a runner passes to the stages.

    `open`: opens a model, as `models.load`. `baseline`: measures the memory of the training process before it opens a
    model. `prepare`: turns files into tokens. `examples`: given from Python in place of files, by "train" and "eval".
    `note`: prints a message for the user. `flags`: those of the command.
    """

    open: Callable[..., Model]
    baseline: Callable[[], Baseline]
    prepare: Prepare
    examples: Mapping[str, Examples] = field(default_factory=dict)
    note: Callable[[str], None] = complain
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """`function`: its full name; its module is imported when the stage begins. `takes`: the type of its argument.

    `begins`: when the command starts a new program for it; "outgrown": if the plan is too small for the data.
    `measures`: from the value as JSON, whether that program measures the training process before it grows itself.
    """

    function: str
    takes: type[Asked | Named | Prepared]
    begins: Literal["always", "never", "outgrown"] = "always"
    measures: Callable[[dict[str, Any]], bool] = lambda _: False

    @property
    def name(self) -> str:
        """The stage's name in a list: that of its function."""
        return self.function.rpartition(".")[2]

    def begins_with(self, value: Any) -> bool:
        """Whether the command starts a new program for this stage, given this value."""
        return self.begins == "always" or (self.begins == "outgrown" and value.outgrown)

    def __call__(self, value: Any, means: Means) -> Any:
        """Run the stage: the next value. FeatherbackError if the run cannot begin."""
        module, _, name = self.function.rpartition(".")
        return getattr(import_module(module), name)(value, means)


NEW = (
    # Check options, data files and the directory, before anything is measured, converted or written.
    Stage("featherback.runs.launch.check", Asked),
    # Choose the plan: the fastest memory layout within the budget.
    Stage("featherback.runs.launch.plan", Asked, measures=lambda asked: asked["plan"] is None),
    # Make the run directory, and write the data to it as tokens.
    Stage("featherback.runs.launch.prepare", Planned),
    # Settle the sequence length by the data, if the user gave none, with a plan for it; hold examples out.
    Stage("featherback.runs.launch.settle", Prepared, begins="outgrown", measures=lambda _: True),
    # Print data, machine and plan. A --dry-run ends here, and removes what was made.
    Stage("featherback.cli.begin.show", Prepared, begins="outgrown"),
    # Become the process that trains: `featherback.worker`.
    Stage("featherback.cli.begin.train", Prepared, begins="never"),
)
"""A new run."""

RESUMED = (
    Stage("featherback.runs.resumed.check_again", Named),
    # Lock the run, and replace its options by those that the user gave; make a new plan if they need one.
    # Without such options the plan most likely stays, so nothing is measured.
    Stage(
        "featherback.runs.resumed.take_up",
        Named,
        measures=lambda named: bool(named["options"].keys() - {"model", "out"}),
    ),
    *NEW[-2:],
)
"""A run that goes on."""
