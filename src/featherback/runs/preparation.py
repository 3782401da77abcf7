"""Everything that comes before the first step of a run, in one process. `cli/launcher.py` does it in several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from featherback.core.terminal import print_error
from featherback.data.launch import prepare_in_subprocess
from featherback.engine.host.interrupt import ended_by_signals
from featherback.engine.host.machine import Baseline
from featherback.models.model import Model
from featherback.runs.config import TrainConfig
from featherback.runs.examples import Examples
from featherback.runs.new_run import new_run
from featherback.runs.passes import run_missing
from featherback.runs.resume import reopen_run
from featherback.runs.run_directory import RunDirectory
from featherback.runs.tools import OpenedModel, Tools
from featherback.runs.worker_process import worker_baseline


def prepare_run(
    config: TrainConfig,
    data: Examples | None = None,
    eval_data: Examples | None = None,
    model: Model | None = None,
    baseline: Callable[[], Baseline] = worker_baseline,
) -> RunDirectory:
    """Prepare a new run up to training in this process, and return it, locked as by `new_run`.

    `data`, `eval_data`: examples that replace the files in the options.
    """
    tools = _tools_here(data, eval_data, model, baseline)
    with ended_by_signals():
        run = new_run(config, tools)
        run_missing(run, tools.open, tools.note)
    return run


def resume_run(
    named: Mapping[str, Any],
    data: Examples | None = None,
    eval_data: Examples | None = None,
    model: Model | None = None,
    baseline: Callable[[], Baseline] = worker_baseline,
    note: Callable[[str], None] = print_error,
) -> RunDirectory:
    """Return the run in `named["out"]`, ready to go on, like `prepare_run`. `note` receives messages for the user."""
    tools = _tools_here(data, eval_data, model, baseline, note)
    with ended_by_signals():
        run = reopen_run(named, tools)
        run_missing(run, tools.open, tools.note)
    return run


def _tools_here(
    data: Examples | None,
    eval_data: Examples | None,
    model: Model | None,
    baseline: Callable[[], Baseline],
    note: Callable[[str], None] = print_error,
) -> Tools:
    """Return the tools of a process that prepares data in another one."""
    given = {name: each for name, each in (("train", data), ("eval", eval_data)) if each is not None}
    return Tools(OpenedModel(model), baseline, prepare_in_subprocess, given, note)
