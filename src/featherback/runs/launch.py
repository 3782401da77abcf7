"""The stages of a new run, from its options to a run directory that is ready to train (`stages.NEW`).

Everything that can go wrong is found here.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from featherback import models
from featherback.core.files import check_room, make_folder
from featherback.core.naming import argument, argument_is
from featherback.core.terminal import complain
from featherback.data.launch import prepare_in_subprocess
from featherback.data.source import STDIN
from featherback.data.token_file import TokenFile
from featherback.engine import kernels
from featherback.engine.budget import BudgetError
from featherback.engine.formats import fingerprint
from featherback.engine.host.interrupt import ended_by_signals
from featherback.engine.host.machine import Baseline
from featherback.engine.host.maps import MapWatch
from featherback.engine.host.priority import step_back
from featherback.engine.host.sensors import Sensors
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.base_model import base_model_name
from featherback.exports.formats.peft import FORMAT as PEFT
from featherback.models.model import Model
from featherback.runs.config import TrainConfig
from featherback.runs.given import Examples, make_tokens
from featherback.runs.held_out import also_trained, counts, hold_out, most_before
from featherback.runs.lengths import outgrown, settle_length
from featherback.runs.loggers import check_installed
from featherback.runs.panels.optimisation import DEFAULT_EPOCHS
from featherback.runs.run_directory import RUN_FILE, RunDirectory, check_new
from featherback.runs.run_file import RUN_YAML
from featherback.runs.stages import NEW, RESUMED, Asked, Means, Named, Planned, Prepared, Stage
from featherback.runs.worker_process import become, worker_baseline, worker_environment
from featherback.version import __version__

_WORKER = "featherback.worker"


def check(asked: Asked, means: Means) -> Asked:
    """The options, whole; FeatherbackError if they, or the paths among them, are wrong. Nothing is measured, converted
    or made for it."""
    config = asked.config
    heed(config)
    _check_paths(config, means.examples)
    return replace(asked, config=_fitting(config, means.open(config.model, config.quantize, foresee=True)))


def plan(asked: Asked, means: Means) -> Planned:
    """The plan that came with the options, or the fastest that fits. BudgetError if none does."""
    if asked.plan is not None:
        return Planned(asked.config, asked.plan)
    from featherback.runs.choose import plan_for  # what only plans is not there where data are prepared

    config = asked.config
    model = means.open(config.model, config.quantize)
    return Planned(config, asdict(plan_for(config, model, means.baseline)))


def prepare(planned: Planned, means: Means) -> Prepared:
    """Begin the directory: locked until the run is `release`d, or this process ends. Turn the data into tokens, once.

    If that fails, or a signal raises KeyboardInterrupt, nothing is left behind.
    """
    config = planned.config
    model, existed = means.open(config.model, config.quantize), Path(config.out).exists()
    base = base_model_name(model)
    known = {"plan": planned.plan, "base_model": base, "model": fingerprint.of_store(model.store)}
    run = RunDirectory.create(config.out, {**_record(config), **known})
    run.lock()
    try:
        run.begin_tokens()
    except BaseException:
        run.release()
        raise
    try:
        data = {"train": config.data, **({"eval": config.eval_data} if config.eval_data is not None else {})}
        with MapWatch(model.files, model.close) as maps:
            reports = {name: _tokens(run, name, config, model, means) for name in data}
            maps.check()
        if "eval" in reports:
            eval_file, train_file = (run.tokens / f"{name}.tokens" for name in ("eval", "train"))
            reports["eval"] = {**reports["eval"], **also_trained(eval_file, train_file)}
        if config.start is not None:
            _keep_start(run, config.start, model, base)
        files = {name: paths for name, paths in data.items() if paths and name not in means.examples}
        run.update(data=reports, sources={name: source_of(paths) for name, paths in files.items()})
        return Prepared(run, is_new=True, existed=existed, outgrown=outgrown(run))
    except BaseException as error:
        undo(run, existed)
        if isinstance(error, BudgetError) and STDIN in (*(config.data or ()), *(config.eval_data or ())):
            raise FeatherbackError(str(error)) from None  # it can be read but once: nothing can begin anew
        raise


def settle(prepared: Prepared, means: Means) -> Prepared:
    """Give the run what its data decide: the sequence length, the plan for it, and the examples that are held out. If
    that fails nothing is left behind."""
    run = prepared.run
    try:
        settle_length(run, lambda: means.open(run.config.model, run.config.quantize), means.baseline)
        hold_out(run)
    except BaseException:
        undo(run, prepared.existed)
        raise
    return prepared


def undo(run: RunDirectory, existed: bool) -> None:
    """Take away what was prepared, and the directory unless it `existed` before; the run is released."""
    for name in (RUN_FILE, RUN_YAML):
        (run.path / name).unlink(missing_ok=True)
    for folder in (run.tokens, run.start) if existed else (run.path,):
        shutil.rmtree(folder, ignore_errors=True)
    run.release()


def prepare_run(
    config: TrainConfig,
    data: Examples | None = None,
    eval_data: Examples | None = None,
    model: Model | None = None,
    baseline: Callable[[], Baseline] = worker_baseline,
) -> RunDirectory:
    """A new run that is ready to train: all stages up to that, in this process. It is locked, as by `prepare`.

    `data`, `eval_data`: examples in place of the files that the options name.
    """
    return _here(NEW, Asked(config), data, eval_data, model, baseline)


def resume_run(
    named: Mapping[str, Any],
    data: Examples | None = None,
    eval_data: Examples | None = None,
    model: Model | None = None,
    baseline: Callable[[], Baseline] = worker_baseline,
    note: Callable[[str], None] = complain,
) -> RunDirectory:
    """The run in `named["out"]`, ready to go on, as by `prepare_run`. `note` is called with messages for the user."""
    return _here(RESUMED, Named(named), data, eval_data, model, baseline, note)


def _here(
    stages: tuple[Stage, ...],
    value: Any,
    data: Examples | None,
    eval_data: Examples | None,
    model: Model | None,
    baseline: Callable[[], Baseline],
    note: Callable[[str], None] = complain,
) -> RunDirectory:
    def opened(path: str, quantize: str, foresee: bool = False) -> Model:
        nonlocal model
        model = model or models.load(path, quantize)
        return model

    given = {name: each for name, each in (("train", data), ("eval", eval_data)) if each is not None}
    means = Means(opened, baseline, prepare_in_subprocess, given, note)
    with ended_by_signals():
        for stage in takewhile(lambda stage: stage.name != "show", stages):
            value = stage(value, means)
    run: RunDirectory = value.run
    return run


def worker_command(run: RunDirectory, *flags: str) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of the training process, which is to be started at once: the run is released for it."""
    run.release()
    return [sys.executable, "-m", _WORKER, str(run.path), *flags], worker_environment()


def become_worker(run: RunDirectory, *flags: str) -> NoReturn:
    """Replace this process, with all it imported, by the small one that trains. The run stays locked throughout.

    A signal that comes meanwhile is that one's first.
    """
    lock = run.pass_lock()
    become(_WORKER, str(run.path), *flags, *([] if lock is None else [f"--lock={lock}"]))


def _check_paths(config: TrainConfig, examples: Mapping[str, Examples]) -> None:
    """Raise FeatherbackError if data cannot be read, or the output directory is not free."""
    from featherback.data.readers import data_files  # not in the training process

    if config.data is None and "train" not in examples:
        raise FeatherbackError(f"{argument('data')} is missing: name the file to train on.")
    for name, paths in (("train", config.data), ("eval", config.eval_data)):
        files = [path for path in paths or () if path != STDIN] if name not in examples else []
        for file in data_files(config.source(tuple(files))):
            _ = file.not_read  # of a folder, what is in it
    check_new(Path(config.out))


def _fitting(config: TrainConfig, model: Model) -> TrainConfig:
    """The options of a new run, whole and such as suit the model; FeatherbackError if they do not."""
    if config.steps is None and config.epochs is None:
        config = replace(config, epochs=DEFAULT_EPOCHS)
    if config.start is not None:
        place = os.path.abspath(config.start)  # the run may be resumed from another folder
        config = replace(config.starting_from(formats.form(model, config.start), model), start=place)
    config = config.for_model(model)
    if config.seq_len is not None and config.batch_tokens is not None and config.batch_tokens < config.seq_len:
        raise FeatherbackError(
            f"{argument_is('batch_tokens', config.batch_tokens)}, less than {argument('seq_len', config.seq_len)}: a "
            f"batch must hold a whole sequence; name at least {argument('batch_tokens', config.seq_len)}."
        )
    if config.whole is not None:
        from featherback.exports.whole import check_writable, stored_names
        from featherback.runs.choose import job_of

        config.whole.check(model)
        check_writable(model, stored_names(model, config.whole), config.whole.kind, config.dequantize)
        check_room(Path(config.out), job_of(config, model).disk_bytes)  # before the model is copied
    return config


def _keep_start(run: RunDirectory, source: str, model: Model, base: str) -> None:
    """Copy the adapter that the run starts from into its directory, holding little of it in memory."""
    make_folder(run.start)
    values = run.start / "values"
    PEFT.save(formats.load(model, source, file=values), run.start, base)
    values.unlink()


def heed(config: TrainConfig) -> None:
    """Take what the user wants of the machine to heart; FeatherbackError if it has not the sensors for it."""
    Sensors(config.pause_on or ())
    check_installed(config.log_to or ())
    if config.nice is not None:
        step_back(config.nice)


def source_of(paths: tuple[str, ...]) -> dict[str, Any]:
    """What is recorded of the files of data, to know them again: standard input is nowhere to be found."""
    return {"paths": places(paths), "fingerprint": [fingerprint.of_data(Path(path)) for path in paths if path != STDIN]}


def places(paths: tuple[str, ...]) -> list[str]:
    """The paths of data, wherever the run is resumed."""
    return [path if path == STDIN else os.path.abspath(path) for path in paths]


def _record(config: TrainConfig) -> dict[str, Any]:
    return {
        "configuration": config.to_json(),
        "versions": {"featherback": __version__, "python": platform.python_version(), "numpy": np.__version__},
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "instruction_set": kernels.describe_instruction_set(),
        },
    }


def _tokens(run: RunDirectory, name: str, config: TrainConfig, model: Model, means: Means) -> Mapping[str, Any]:
    """Make a token file that the model can read; what is to be said of it."""
    path, paths = run.tokens / f"{name}.tokens", config.data if name == "train" else config.eval_data
    enough = enough_tokens(config) if name == "train" else None
    most = config.seq_len or model.config.max_position_embeddings
    source, examples = config.source(paths or ()), means.examples.get(name)
    report = make_tokens(path, source, config.sequence, most, examples, model, means.prepare, enough)
    file = TokenFile(path)
    file.check(model.config.vocab_size)
    return counts(file) if report is None else report.to_json()


def enough_tokens(config: TrainConfig) -> int | None:
    """Tokens that surely fill every batch of the run's steps, however they are packed, and what is held out of them;
    None: each is used."""
    if config.steps is None:
        return None
    trained = config.steps * config.most_step_tokens
    return most_before(trained, config) if config.eval_data is None and config.eval_share else trained
