"""Repeats a zeroth-order run from its options and its directions.log, without reading data or computing a loss.

Each step's gradients are rebuilt from the seed and the slopes, and go through the run's own optimiser. On the same
instruction set, the result is bit for bit that of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from featherback import methods, optim
from featherback.core import private
from featherback.core.naming import argument
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.methods.base import Draw
from featherback.methods.mezo import MeZO
from featherback.models.model import Model
from featherback.runs import checkpoint
from featherback.runs.beginning import base_model, first_adapter, first_optimizer
from featherback.runs.direction_log import NAME, read_steps
from featherback.runs.run_directory import RunDirectory, check_new


def replay(
    run: RunDirectory,
    out: Path,
    step: int | None = None,
    model: Model | None = None,
    on_step: Callable[[int, int], None] = lambda step, last: None,
) -> int:
    """Write the adapter that a run kept, or would have kept, after `step` to the folder `out`, and return the step.

    `step`: None for the step of the adapter in the run's directory. `model`: the run's model, if it is open already.
    `on_step`: called after each step with its number and the last step's. Raises FeatherbackError if there is no intact
    log.
    """
    config = run.config
    if not issubclass(methods.METHODS[config.method], MeZO):
        raise FeatherbackError(
            f"{run.path} cannot be replayed: it was trained with {argument('method', config.method)}, which "
            f"is not zeroth-order."
        )
    path = run.path / NAME
    if not config.method_options["log_directions"] or not path.exists():
        raise FeatherbackError(
            f"{run.path} has no {NAME}: only a run with {argument('log_directions', True)} can be replayed."
        )
    last = exported_step(run) if step is None else step
    if last < 1:
        raise FeatherbackError(
            f"{run.path} has not saved an adapter yet; choose the last step of the replay with {argument('step')}."
        )
    check_new(out)
    model = base_model(run, model)
    adapter = first_adapter(run, model)
    parameters = adapter.parameters
    optimizer = first_optimizer(config, adapter)
    gradients = parameters.zeros_like(parameters.size)
    plan = replace(run.plan_of(model.blocks), checkpoints="ram", states="ram")
    options = methods.OPTIONS.make(config.method, config.method_options)
    estimator = methods.create(config.method, model, adapter, plan, options=options)
    assert isinstance(estimator, MeZO)
    try:
        for logged in read_steps(path, run.origin, last):
            gradients.clear()
            estimator.replay(logged.slopes, Draw(config.seed, logged.step - 1), gradients)
            scale = optim.clip_scale(optim.global_norm(gradients), config.clip_norm)
            optimizer.step(gradients, logged.lr, scale)
            on_step(logged.step, last)
        private.make_private_folder(out)
        with adapter.holding(optimizer.kept if _is_mean(run, last) else parameters):
            formats.of_run(adapter.form).save(adapter, out, run.record.get("base_model"))
    except OSError as error:
        raise FeatherbackError(f"Cannot write {out}: {error.strerror}.") from error
    finally:
        estimator.close()
        optimizer.close()
        adapter.close()
    return last


def _is_mean(run: RunDirectory, step: int) -> bool:
    """Return whether a run that averages kept the mean after `step`, or would have kept it if it had ended there."""
    measured = run.record.get("evaluations", [])
    return all(evaluation.get("mean", False) for evaluation in measured if evaluation["step"] == step)


def exported_step(run: RunDirectory) -> int:
    """Return the step of the adapter in a run's directory: the lowest held-out loss, or else the last saved."""
    measured = [evaluation for evaluation in run.record.get("evaluations", []) if evaluation["step"] > 0]
    if measured:
        return int(min(measured, key=lambda evaluation: evaluation["loss"])["step"])
    finished = run.record.get("summary", {}).get("steps", 0)
    return max(checkpoint.latest_step(run.path), int(finished))
