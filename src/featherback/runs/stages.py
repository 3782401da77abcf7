"""`featherback train` as a list of stages: each turns one value into the next one.

A runner goes through a list. The command's (`cli/begin.py`) begins most stages in a program of their own, which takes
the place of the program before and holds nothing of it, so that `--memory` bounds each by itself. The Python API's
(`launch.py`) runs the same functions in its own process. `Means` has what a runner lends to the stages. Between
programs the values are JSON.

This module imports next to nothing: the memory of a program counts while it measures the training process.
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
    """The options of a new run, and the plan that came with them, if one did."""

    config: TrainConfig
    plan: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {"config": self.config.to_json(), "plan": self.plan}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Asked:
        from featherback.runs.config import TrainConfig

        return cls(TrainConfig.from_json(values["config"]), values["plan"])


class Planned(Asked):
    """The options, such as suit the model, and the plan for them."""


@dataclass(frozen=True)
class Named:
    """The options that were named to resume the run in `out`: fields of TrainConfig, "model" and "out" among them."""

    options: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Named:
        return cls(**values)


@dataclass(frozen=True)
class Prepared:
    """A run that has its data, locked.

    `is_new`: it is not resumed. `existed`: its directory did before. `outgrown`: its plan is too small for its data.
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
    """What a runner lends to the stages.

    `open`: `models.load`. `baseline`: what the process that trains initially holds. `prepare`: turns files into tokens.
    `examples`: given from Python in place of files, by "train" and "eval". `note`: called with messages for the user.
    `flags`: of the command.
    """

    open: Callable[..., Model]
    baseline: Callable[[], Baseline]
    prepare: Prepare
    examples: Mapping[str, Examples] = field(default_factory=dict)
    note: Callable[[str], None] = complain
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """`function`: where it is, imported when it begins. `takes`: what it is given.

    `begins`: whether the command gives it a program of its own; "outgrown": if the plan is too small for the data.
    `measures`: whether that program measures the training process before it grows, by the value as JSON.
    """

    function: str
    takes: type[Asked | Named | Prepared]
    begins: Literal["always", "never", "outgrown"] = "always"
    measures: Callable[[dict[str, Any]], bool] = lambda _: False

    @property
    def name(self) -> str:
        """By which a list has it."""
        return self.function.rpartition(".")[2]

    def begins_with(self, value: Any) -> bool:
        """Whether a program of its own begins."""
        return self.begins == "always" or (self.begins == "outgrown" and value.outgrown)

    def __call__(self, value: Any, means: Means) -> Any:
        """What the stage makes of a value; FeatherbackError if the run cannot be begun."""
        module, _, name = self.function.rpartition(".")
        return getattr(import_module(module), name)(value, means)


NEW = (
    # The options suit the model, the data can be read, the directory is free. Nothing is measured, converted or made.
    Stage("featherback.runs.launch.check", Asked),
    # How the run lays out its memory: the fastest way within the budget.
    Stage("featherback.runs.launch.plan", Asked, measures=lambda asked: asked["plan"] is None),
    # The directory, and in it the data as tokens.
    Stage("featherback.runs.launch.prepare", Planned),
    # The sequence length, if none was named, by the data; a plan for that; the examples that are held out.
    Stage("featherback.runs.launch.settle", Prepared, begins="outgrown", measures=lambda _: True),
    # What is about to be done. With --dry-run that is all.
    Stage("featherback.cli.begin.show", Prepared, begins="outgrown"),
    # The process that trains takes this one's place.
    Stage("featherback.cli.begin.train", Prepared, begins="never"),
)
"""A new run."""

RESUMED = (
    Stage("featherback.runs.resumed.check_again", Named),
    # The run, locked, with the options that are named in place of its own, and another plan if they need one.
    # If nothing is named the plan stays, most likely.
    Stage(
        "featherback.runs.resumed.take_up",
        Named,
        measures=lambda named: bool(named["options"].keys() - {"model", "out"}),
    ),
    *NEW[-2:],
)
"""A run that goes on."""
