"""The trained object of a run: how a step changes it and how it is saved. `runs.trainer` contains the loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from featherback import methods, optim
from featherback.core.naming import argument
from featherback.engine.host.paged import PagedArray
from featherback.exports import formats
from featherback.methods import cached
from featherback.methods.base import Draw, Method
from featherback.methods.memory import disk
from featherback.methods.memory.plan import Plan
from featherback.models.model import Model
from featherback.nn.objectives.base import Objective
from featherback.runs import checkpoint, guard
from featherback.runs.checkpoint import Progress
from featherback.runs.initial_state import first_adapter, first_optimizer
from featherback.runs.run_directory import RunDirectory
from featherback.runs.stream import Group

PARAMETERS = "parameters"


class Outcome(NamedTuple):
    """The results of a step."""

    loss: float  # mean over supervised tokens, in nats
    norm: float  # Euclidean norm of the gradient before clipping


class Trained(Protocol):
    """The interface of an adapter, or of a model's own weights, in training."""

    name: ClassVar[str]
    """Its name in messages: "adapter" or "model"."""
    method: Method
    model: Model

    def step(self, group: Group, lr: float, step: int, check: Callable[[], None]) -> Outcome:
        """Do step number `step`, counted from 1. `check` raises an error if a model file was truncated meanwhile.

        Raises DivergenceError if the loss, the gradient or the new parameters are not finite, or the loss has exploded.
        """

    def showing(self, mean: bool) -> AbstractContextManager[None]:
        """Return a context in which `method` uses the current parameters or, if `mean`, their mean if there is one."""

    @property
    def disk_bytes(self) -> int:
        """Bytes that the run has yet to write to the disk."""

    def restore(self) -> tuple[Progress | None, list[str]]:
        """Load the newest good checkpoint; return its progress (None without checkpoints) and notes for the user.

        Raises FeatherbackError if there are checkpoints but none is good.
        """

    def save(self, progress: Progress, export: bool) -> Path:
        """Write a checkpoint and return its file. If `export`, export the result first."""

    def export(self, mean: bool) -> None:
        """Write the result to the run directory: the current parameters or, if `mean`, their mean if there is one."""

    def remove(self) -> None:
        """Delete the exported result."""

    def close(self) -> None:
        """Close files."""


class TrainedAdapter:
    """An adapter beside frozen weights."""

    name: ClassVar[str] = "adapter"

    def __init__(self, run: RunDirectory, model: Model, plan: Plan, objective: Objective) -> None:
        config, self._objective = run.config, objective
        self._run, self._config, self._plan, self.model = run, config, plan, model
        states = run.work if plan.states == "file" else None
        place = states and states / f"{PARAMETERS}.f32"
        self.adapter = first_adapter(run, model, place)
        self._format = formats.of_run(self.adapter.form)
        parameters = self.adapter.parameters
        self.optimizer = first_optimizer(config, self.adapter, states)
        self.gradients = parameters.zeros_like(parameters.size, states and states / "gradients.f32")
        options = methods.OPTIONS.make(config.method, config.method_options)
        self.method = methods.create(config.method, model, self.adapter, plan, run.work, options, objective=objective)

    def step(self, group: Group, lr: float, step: int, check: Callable[[], None]) -> Outcome:
        config = self._config
        self.gradients.clear()
        loss, first = 0.0, 0
        for batch in group.batches:
            draw = Draw(config.seed, step - 1, first)
            loss += cached.gradients(self.method, batch, 1 / group.n_terms, self.gradients, draw)
            first += batch.n_tokens
        loss /= group.n_terms
        norm = optim.global_norm(self.gradients)
        check()
        guard.check_loss(loss, "the loss", step, step - 1, self.model, self._objective.of_tokens)
        guard.check_finite(norm, "the gradient", step, step - 1, self.model)
        if not self.optimizer.step(self.gradients, lr, optim.clip_scale(norm, config.clip_norm)):
            raise guard.DivergenceError(f"the adapter is not finite at step {step}; lower {argument('lr')}", step)
        return Outcome(loss, norm)

    def showing(self, mean: bool) -> AbstractContextManager[None]:
        return self.adapter.holding(self.optimizer.kept if mean else self.adapter.parameters)

    @property
    def disk_bytes(self) -> int:
        arrays = self._arrays()
        parameters = checkpoint.nbytes({PARAMETERS: self.adapter.parameters})
        needed = disk.of_adapter(parameters, checkpoint.nbytes(arrays) - parameters)
        needed -= checkpoint.held(self._run.path)
        if self._plan.states == "file":
            needed += checkpoint.nbytes({**arrays, "gradients": self.gradients})
            if self.adapter.layout.fixed.size:
                needed += checkpoint.nbytes({"fixed": self.adapter.fixed})
        return needed

    def restore(self) -> tuple[Progress | None, list[str]]:
        state, refused = checkpoint.restore(
            self._run.path, self._run.identity, self._arrays(), len(self.optimizer.updates)
        )
        notes = [f"{reason}; using the previous checkpoint" for reason in refused]
        if state is None:
            return None, notes
        self.optimizer.updates = state.updates
        return state.progress, notes

    def save(self, progress: Progress, export: bool) -> Path:
        if export:
            self.export(mean=True)
        state = checkpoint.State(self._run.identity, progress, self.optimizer.updates)
        return checkpoint.save(self._run.path, self._arrays(), state)

    def export(self, mean: bool) -> None:
        with self.showing(mean):
            # Take the base's name from the record: the model file would load its vocabulary into memory.
            self._format.save(self.adapter, self._run.path, self._run.record.base_model)

    def remove(self) -> None:
        self._format.remove(self._run.path)

    def close(self) -> None:
        self.method.close()
        self.optimizer.close()
        self.gradients.close()
        self.adapter.close()

    def _arrays(self) -> dict[str, PagedArray]:
        return {PARAMETERS: self.adapter.parameters, **self.optimizer.states, **self.method.states}
