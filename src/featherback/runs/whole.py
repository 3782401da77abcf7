"""Training of a model's own weights (`--train full`).

The run changes a working copy of the model in place during the backward pass. A checkpoint keeps another copy, with the
optimiser states. That copy is never changed, so a run that is killed at any moment, even in the middle of a weight,
continues from it. The disk holds the working copy, the kept copy, and the next copy while it is being made.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import ClassVar

from featherback import methods, models, optim
from featherback.core.files import checksum, clone_file, link_file, open_regular, sync_directory
from featherback.core.naming import argument
from featherback.data.batch import Batch
from featherback.errors import FeatherbackError
from featherback.exports.merged_hf import WEIGHTS
from featherback.exports.whole import copy_writable, stored_names
from featherback.methods import cached
from featherback.methods.base import Draw
from featherback.methods.memory import disk
from featherback.methods.memory.plan import Plan
from featherback.methods.whole.files import StateFile, WeightFiles
from featherback.methods.whole.gradients import TrainWeight, WeightGradients
from featherback.methods.whole.optimizer import NormOnly, WholeOptimizer
from featherback.models.loader import results
from featherback.models.model import Model
from featherback.nn.objectives.base import Objective
from featherback.optim.rule import StepArgs
from featherback.runs import checkpoint, guard
from featherback.runs.checkpoint import Progress
from featherback.runs.run_directory import RunDirectory
from featherback.runs.stream import Group
from featherback.runs.trained import Outcome

STATES = "states.f32"


def working_copy(run: RunDirectory, base: Model, check: Callable[[], None]) -> Model:
    """Make and open the working copy of the newest checkpoint's model, or else of the run's base model.

    `check` is called while the base model is copied; an exception from it ends the copying.
    """
    whole = run.config.whole
    assert whole is not None
    kept = run.path / _kept_name(checkpoint.latest_step(run.path))
    for folder in run.path.glob(f"{checkpoint.WEIGHTS}*"):
        if folder != kept:  # incomplete: the run was killed while making or deleting it
            shutil.rmtree(folder, ignore_errors=True)
    path = run.work / results(run.path)[base.source != "gguf"].name
    if kept.is_dir():
        _for_each_file(clone_file, kept / path.name, path)
    else:
        copy_writable(base, path, stored_names(base, whole), whole.kind, check)
    model = models.load(path)
    for each in model.maps:
        each.ours = True
    return model


class TrainedWeights:
    """All weights of `model`, the run's working copy, except frozen ones."""

    name: ClassVar[str] = "model"

    def __init__(self, run: RunDirectory, model: Model, plan: Plan, objective: Objective) -> None:
        self._objective = objective
        config, whole = run.config, run.config.whole
        assert whole is not None
        self._run, self._config, self._whole, self.model = run, config, whole, model
        self._places = whole.trained(model.config, model.blocks)
        self._numbers = {place: number for number, place in enumerate(self._places)}
        self._files = WeightFiles(model, config.seed, self._numbers)
        self._weights_of: int | None = checkpoint.latest_step(run.path)  # step of `model`, if kept
        in_file = run.work / STATES if plan.states == "file" else None
        self._states = StateFile(whole.rule, self._places.items(), in_file)
        self._updates = dict.fromkeys(self._places, 0)
        options = methods.OPTIONS.make(config.method, config.method_options)
        self.method = methods.create(config.method, model, None, plan, run.work, options, whole, objective)

    def step(self, group: Group, lr: float, step: int, check: Callable[[], None]) -> Outcome:
        (batch,), self._weights_of = group.batches, None
        only, scale = NormOnly(), 1.0
        if self._config.clip_norm:  # needs its own backward pass, because gradients are not stored
            self._gradients(batch, group.n_terms, step, only.train)
            scale = optim.clip_scale(only.found.norm, self._config.clip_norm)
        turn = StepArgs(step, lr, scale, self._config.seed)
        at_work = WholeOptimizer(self._whole.rule, self._files, self._states, turn, self._numbers, self._updates)
        loss = self._gradients(batch, group.n_terms, step, at_work.train)
        self.model.read_norm()
        check()
        for what, value in (("the loss", loss), ("the gradient", at_work.found.norm)):
            if not math.isfinite(value):  # the working copy is already spoiled
                raise guard.DivergenceError(f"{what} is not finite at step {step}; lower {argument('lr')}", step - 1)
        guard.check_loss(loss, "the loss", step, step - 1, self.model, self._objective.of_tokens)
        if not at_work.found.finite:
            raise guard.DivergenceError(f"the weights are not finite at step {step}; lower {argument('lr')}", step)
        return Outcome(loss, at_work.found.norm)

    def _gradients(self, batch: Batch, n_terms: int, step: int, train: TrainWeight) -> float:
        """Pass every weight's gradient to `train` and return the mean loss."""
        model = self.model
        sink = WeightGradients(
            model.head,
            self.method.resources.weights,
            model.embedding_scale,
            model.config.tie_word_embeddings,
            train,
            self._places,
        )
        draw = Draw(self._config.seed, step - 1)
        return cached.gradients(self.method, batch, 1 / n_terms, sink, draw) / n_terms

    def showing(self, mean: bool) -> AbstractContextManager[None]:
        return nullcontext()  # no mean is kept, because it would be as large as the model

    @property
    def disk_bytes(self) -> int:
        weights, states = sum(path.stat().st_size for path in self.model.files), self._states.size * 4
        kept = sum(path.stat().st_size for path in self._kept_files(checkpoint.latest_step(self._run.path)))
        best = 2 * weights if "eval" in self._run.record.data else 0
        at_work = weights + states * (self._states.path is None)  # on the disk already, or in RAM
        return disk.of_whole_model(weights, states) - at_work + best - kept

    def restore(self) -> tuple[Progress | None, list[str]]:
        state, _ = checkpoint.restore(self._run.path, self._run.identity, {}, len(self._places))
        if state is None:
            return None, []
        step, updates = state.progress.step, state.updates
        kept = self._run.path / _kept_name(step)
        again = f"delete {kept.name} and {checkpoint.latest(self._run.path)} to train from the start."
        self._updates = dict(zip(self._places, updates))
        there = {str(path.relative_to(kept)): path for path in self._kept_files(step)}
        for name, expected in state.files.items():
            if name not in there or _checksum(there[name]) != expected:
                raise FeatherbackError(
                    f"No checkpoint of {self._run.path} can be used: {kept.name}/{name} is missing or damaged; {again}"
                )
        if self._weights_of != step:
            for path in self.model.files:
                clone_file(kept / path.relative_to(self._run.work), path, in_place=True)
            self._weights_of = step
            self.model.read_norm()
        if self._states.path is not None:
            clone_file(kept / STATES, self._states.path, in_place=True)
        else:
            self._states.load(kept / STATES)
        return state.progress, []

    def save(self, progress: Progress, export: bool) -> Path:
        run, step = self._run, progress.step
        kept = run.path / _kept_name(step)
        shutil.rmtree(kept, ignore_errors=True)
        _for_each_file(clone_file, self.model.path, kept / self.model.path.name)
        if self._states.path is not None:
            clone_file(self._states.path, kept / STATES)
        else:
            self._states.keep(kept / STATES)
        sync_directory(kept)
        self._weights_of = step
        files = {str(path.relative_to(kept)): _checksum(path) for path in self._kept_files(step)}
        if export:
            _for_each_file(_as_result, kept / self.model.path.name, run.path / self.model.path.name)
        state = checkpoint.State(run.identity, progress, [*self._updates.values()], files=files)
        path = checkpoint.save(run.path, {}, state, keep=1)
        for folder in run.path.glob(f"{checkpoint.WEIGHTS}*"):
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)
        return path

    def export(self, mean: bool) -> None:
        _for_each_file(clone_file, self.model.path, self._run.path / self.model.path.name)

    def remove(self) -> None:
        result = self._run.path / self.model.path.name
        if result.is_dir():
            shutil.rmtree(result)
        else:
            result.unlink(missing_ok=True)

    def close(self) -> None:
        self.method.close()
        self._files.close()
        self._states.close()

    def _kept_files(self, step: int) -> list[Path]:
        """Return the files that the checkpoint of a step keeps."""
        return sorted(path for path in (self._run.path / _kept_name(step)).rglob("*") if path.is_file())


def _kept_name(step: int) -> str:
    return f"{checkpoint.WEIGHTS}{step:06d}"


def _for_each_file(make: Callable[[Path, Path], None], source: Path, path: Path) -> None:
    """Call `make(file, target)` for the file `source`, or for each file of the folder `source`."""
    for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
        if file.is_file():
            make(file, path / file.relative_to(source) if source.is_dir() else path)


def _as_result(kept: Path, path: Path) -> None:
    """Link a kept weight file to its result path; copy other files, because users may edit them."""
    (link_file if kept.suffix in WEIGHTS else clone_file)(kept, path)


def _checksum(path: Path) -> int:
    with open_regular(path) as file:
        return checksum(file, os.fstat(file.fileno()).st_size)
