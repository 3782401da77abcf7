"""From options to a run directory that is ready to train: everything that can go wrong is found here."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from featherback import kernels, models
from featherback.adapters import formats
from featherback.adapters.base_model import base_model_name
from featherback.adapters.formats.peft import FORMAT as PEFT
from featherback.data.launch import prepare_in_subprocess
from featherback.data.source import STDIN
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError
from featherback.files import check_room, make_folder
from featherback.host.interrupt import ended_by_signals
from featherback.host.machine import Baseline, memory_limit
from featherback.host.maps import MapWatch
from featherback.host.priority import step_back
from featherback.host.sensors import Sensors
from featherback.memory.plan import Plan
from featherback.models.model import Model
from featherback.naming import argument, argument_is, arguments
from featherback.options import checked
from featherback.terminal import complain
from featherback.training import checkpoint
from featherback.training.changes import continued
from featherback.training.config import TrainConfig
from featherback.training.ended import check_over, is_closed
from featherback.training.given import Examples, Prepare, make_tokens, same_tokens
from featherback.training.held_out import also_trained, counts, hold_out, most_before, split, was_split
from featherback.training.lengths import hold_to, settle
from featherback.training.loggers import check_installed
from featherback.training.outcome import worsening
from featherback.training.panels.optimisation import DEFAULT_EPOCHS
from featherback.training.panels.run import PLANNED
from featherback.training.run_directory import RUN_FILE, RunDirectory, check_new, plan_from_json
from featherback.training.run_file import RUN_YAML
from featherback.training.worker_process import become, worker_baseline, worker_environment
from featherback.version import __version__
from featherback.weights import fingerprint

_WORKER = "featherback.training.worker"


def check_run(config: TrainConfig) -> None:
    """Raise FeatherbackError if the options of a new run, or the paths among them, are wrong.

    Nothing is measured, converted or made for it.
    """
    _heed(config)
    _check_paths(config)
    opened = models.load(config.model, config.quantize, foresee=True)
    try:
        _fitting(config, opened, None)
    finally:
        opened.close()


def check_resumed(named: Mapping[str, Any]) -> None:
    """The same for the options of a run that is resumed, `named` as for `resume_run`."""
    run = RunDirectory.open(named["out"])
    config = run.config
    if config.seq_len is None:  # it is settled first
        return
    opened = models.load(named["model"], config.quantize, foresee=True)
    try:
        _heed(continued(config, named, opened))
    finally:
        opened.close()


def plan_run(config: TrainConfig, baseline: Callable[[], Baseline]) -> dict[str, Any]:
    """The plan that `prepare_run` would choose, as JSON: for a process that plans and gives way to one that prepares.

    FeatherbackError as there.
    """
    _heed(config)
    opened = models.load(config.model, config.quantize)
    return asdict(_plan(_fitting(config, opened, None), opened, baseline))


def prepare_run(
    config: TrainConfig,
    data: Examples | None = None,
    eval_data: Examples | None = None,
    model: Model | None = None,
    baseline: Callable[[], Baseline] = worker_baseline,
    prepare: Prepare = prepare_in_subprocess,
    plan: dict[str, Any] | None = None,
) -> RunDirectory:
    """Check the options against the model, choose the plan, tokenise the data, begin the directory.

    `data`, `eval_data`: examples that are tokens already, in place of the files, which `prepare` tokenises. `baseline`
    finds what the process that will train holds to begin with; it is not asked if `plan_run` has chosen the `plan`. The
    run that is returned is locked: nobody else can train it before it is `release`d or this process ends. With a `plan`
    the sequence length may be left open: None, if the data need more than that is for; then `lengths.settle` is to be
    called. A signal that would end the process raises KeyboardInterrupt, and nothing is left behind.
    """
    with ended_by_signals():
        _heed(config)
        _check_paths(config, data, eval_data)
        opened = model or models.load(config.model, config.quantize)
        config = _fitting(config, opened, data)
        existed = Path(config.out).exists()
        chosen = plan or asdict(_plan(config, opened, baseline))
        base = base_model_name(opened)
        known = {"plan": chosen, "base_model": base, "model": fingerprint.of_store(opened.store)}
        run = RunDirectory.create(config.out, {**_record(config), **known})
        run.lock()
        try:
            run.begin_tokens()
        except BaseException:
            run.release()
            raise
        try:
            sources = {"train": (config.data, data)}
            if config.eval_data is not None:
                sources["eval"] = (config.eval_data, eval_data)
            with MapWatch(opened.files, opened.close) as maps:
                reports = {name: _tokens(run, name, config, *given, opened, prepare) for name, given in sources.items()}
                maps.check()
            if "eval" in reports:
                eval_file, train_file = (run.tokens / f"{name}.tokens" for name in ("eval", "train"))
                reports["eval"] = {**reports["eval"], **also_trained(eval_file, train_file)}
            files = {name: paths for name, (paths, examples) in sources.items() if examples is None and paths}
            if config.start is not None:
                _keep_start(run, config.start, opened, base)
            run.update(data=reports, sources={name: _source(paths) for name, paths in files.items()})
            if settle(run, opened, baseline, plan_now=plan is None):
                hold_out(run)
        except BaseException:
            undo(run, existed)
            raise
    return run


def undo(run: RunDirectory, existed: bool) -> None:
    """Take away what was prepared, and the directory unless it `existed` before; the run is released."""
    for name in (RUN_FILE, RUN_YAML):
        (run.path / name).unlink(missing_ok=True)
    for folder in (run.tokens, run.start) if existed else (run.path,):
        shutil.rmtree(folder, ignore_errors=True)
    run.release()


def resume_run(
    named: Mapping[str, Any],
    data: Examples | None = None,
    eval_data: Examples | None = None,
    model: Model | None = None,
    baseline: Callable[[], Baseline] = worker_baseline,
    note: Callable[[str], None] = complain,
) -> RunDirectory:
    """Take up the run in `named["out"]`, with its own token files: returned locked, as by `prepare_run`.

    `named`: fields of TrainConfig that the user named, and "model", which must hold what it held at the start. All
    others are the run's. `note` is called with messages for the user. FeatherbackError leaves the options as they were,
    and comes without a note.
    """
    notes = list[str]()  # for when nothing is refused any more
    with ended_by_signals():
        run = RunDirectory.take(named["out"])
        try:
            earlier = run.config
            opened = model or models.load(named["model"], earlier.quantize)
            if run.record.get("model") != fingerprint.of_store(opened.store):
                raise FeatherbackError(
                    f"Cannot resume {run.path} with {opened.path}: it is not the model that the run was begun with; "
                    f"bring that one back, or begin another run."
                )
            settle(run, opened, baseline)
            hold_out(run)
            earlier = _unlogged(run.config, named, notes.append)
            config = continued(earlier, named, opened)
            _heed(config)
            if config.eval_data is not None and earlier.eval_data is None:
                raise FeatherbackError(
                    f"Cannot resume {run.path} with {argument('eval_data')}: the run was begun without."
                )
            _check_data(run, "train", "data", named.get("data"), data, config, earlier, opened, notes.append)
            _check_data(
                run, "eval", "eval_data", named.get("eval_data"), eval_data, config, earlier, opened, notes.append
            )
            if is_closed(run):
                check_over(run, config, earlier)
                return run
            done = checkpoint.latest_step(run.path)
            if config.steps is not None and config.steps < done:
                raise FeatherbackError(
                    f"{run.path} has done {done} steps already, more than {argument('steps', config.steps)}; "
                    f"name at least as many."
                )
            # As long as these are the same the plan stays, and with it every bit.
            plan = plan_from_json(run.record.get("plan"))
            same = config if plan is None else replace(config, memory=plan.budget(config.memory))
            changed = any(getattr(same, name) != getattr(earlier, name) for name in PLANNED)
            if (reason := _no_plan(run, plan)) or changed:
                # What it computes in stays, as far as it is known.
                compute = config.compute if plan is None else plan.compute
                plan, rates = (_plan(replace(config, compute=compute), opened, baseline), plan.rates if plan else {})
                run.record["plan"] = asdict(replace(plan, rates=rates))
                config = replace(config, memory=plan.budget(config.memory))
            else:
                run.plan_of(opened.blocks)
                config = same
            if reason:
                notes.append(f"note: {reason}; the plan is made anew")
            _be_patient(run, named, done)
            config = replace(config, data=earlier.data, eval_data=earlier.eval_data)
            _tell_repeated(run, config, notes.append)
            run.update(configuration=config.to_json())
        except BaseException:
            run.release()
            raise
    for text in notes:
        note(text)
    return run


def _unlogged(recorded: TrainConfig, named: Mapping[str, Any], note: Callable[[str], None]) -> TrainConfig:
    """The options of a run without the programs that it was logged to, unless the user named any: what a directory
    says, which may be a stranger's, sends nothing anywhere."""
    if not recorded.log_to or named.get("log_to") is not None:
        return recorded
    programs = ",".join(recorded.log_to)
    note(f"note: the run was logged to {programs} and no longer is; to go on with that: {argument('log_to', programs)}")
    return replace(recorded, log_to=None)


def _no_plan(run: RunDirectory, plan: Plan | None) -> str:
    """Why the plan on a run's record will not do, if it will not. `plan`: what could be read of it."""
    if plan is None:
        return f"{run.path / RUN_FILE} holds no plan of this version of Featherback"
    needed, free = (plan.predicted_rss_mb or 0) * 10**6, memory_limit()
    if needed > free:
        return f"the run's plan needs {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free"
    return ""


def _be_patient(run: RunDirectory, named: Mapping[str, Any], done: int) -> None:
    """Let a run that stopped early go on from step `done`, if the user named how far or how patiently.

    FeatherbackError if not.
    """
    if run.record.get("status") != "stopped early":
        return
    if not named.keys() & {"steps", "epochs", "patience", "eval_every"}:
        best = "model" if run.config.train == "full" else "adapter"
        rise = worsening(run.record.get("summary", {}))
        kept = f"Its best {best} is kept." if rise is None else f"It is worse than before training: {rise}."
        raise FeatherbackError(
            f"{run.path} stopped early, after step {done}: the held-out loss no longer fell. {kept} "
            f"To go on all the same, name {arguments('steps', 'epochs', 'patience')}."
        )
    run.record["patient_since"] = done


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


def _check_paths(config: TrainConfig, data: Examples | None = None, eval_data: Examples | None = None) -> None:
    """Raise FeatherbackError if data cannot be read, or the output directory is not free.

    `data`, `eval_data`: examples that were given in place of files.
    """
    from featherback.data.readers import data_files  # not in the training process

    for paths, examples in ((config.data, data), (config.eval_data, eval_data)):
        files = [path for path in paths or () if path != STDIN] if examples is None else []
        for file in data_files(config.source(tuple(files))):
            _ = file.not_read  # of a folder, what is in it
    check_new(Path(config.out))


def _fitting(config: TrainConfig, model: Model, data: Examples | None) -> TrainConfig:
    """The options of a new run, whole and such as suit the model; FeatherbackError if they do not."""
    if config.data is None and data is None:
        raise FeatherbackError(f"{argument('data')} is missing: name the file to train on.")
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
        from featherback.training.choose import job_of
        from featherback.whole.copy import check_writable, stored_names

        config.whole.check(model)
        check_writable(model, stored_names(model, config.whole), config.whole.kind, config.dequantize)
        check_room(Path(config.out), job_of(config, model).disk_bytes)  # before the model is copied
    check_new(Path(config.out))
    return config


def _keep_start(run: RunDirectory, source: str, model: Model, base: str) -> None:
    """Copy the adapter that the run starts from into its directory, holding little of it in memory."""
    make_folder(run.start)
    values = run.start / "values"
    PEFT.save(formats.load(model, source, file=values), run.start, base)
    values.unlink()


def _heed(config: TrainConfig) -> None:
    """Take what the user wants of the machine to heart; FeatherbackError if it has not the sensors for it."""
    Sensors(config.pause_on or ())
    check_installed(config.log_to or ())
    if config.nice is not None:
        step_back(config.nice)


def _plan(config: TrainConfig, model: Model, baseline: Callable[[], Baseline]) -> Plan:
    from featherback.training.choose import plan_for  # what only plans is not there where data are prepared

    return plan_for(config, model, baseline)


def _source(paths: tuple[str, ...]) -> dict[str, Any]:
    """What is recorded of the files of data, to know them again: standard input is nowhere to be found."""
    return {
        "paths": _places(paths),
        "fingerprint": [fingerprint.of_data(Path(path)) for path in paths if path != STDIN],
    }


def _places(paths: Iterable[str]) -> list[str]:
    return [path if path == STDIN else os.path.abspath(path) for path in paths]


def _check_data(
    run: RunDirectory,
    name: str,
    option: str,
    named: Any,
    examples: Examples | None,
    config: TrainConfig,
    earlier: TrainConfig,
    model: Model,
    note: Callable[[str], None],
) -> None:
    """FeatherbackError if data are named to resume a run that was begun with others."""
    paths: tuple[str, ...] | None = checked(TrainConfig, "data", named)
    places = ", ".join(paths or ())
    given = argument(option) if examples is not None else argument(option, places)
    refusal = FeatherbackError(
        f"Cannot resume {run.path} with {given}: the run was begun with other data, whose tokens it keeps; "
        f"leave {argument(option)} out, or begin another run."
    )
    if examples is not None:
        with tempfile.TemporaryDirectory(prefix="featherback-") as folder:
            file = Path(folder) / "given.tokens"
            told = run.record.get("data", {}).get(name, {})
            # As it was prepared: the run's length came later, and what is beyond it was cut only then.
            source = replace(config.source(()), long="keep")
            length, enough = told.get("seq_len", config.sequence), told.get("enough")
            most = config.seq_len or model.config.max_position_embeddings
            report = make_tokens(file, source, length, most, examples, model, prepare_in_subprocess, enough)
            if report is not None:
                hold_to(file, report, config.sequence, config.cut, "the run's length", "another run takes them")
            if name == "train" and was_split(run):
                split(file, Path(folder) / "held.tokens", earlier)
            if not same_tokens(TokenFile(file), TokenFile(run.tokens / f"{name}.tokens")):
                raise refusal
    elif paths is not None:
        known = run.record.get("sources", {}).get(name)
        if not isinstance(known, dict):
            raise refusal
        gone = [path for path in paths if path != STDIN and not Path(path).exists()]
        if not gone and _source(paths)["fingerprint"] == known.get("fingerprint"):
            return
        if _places(paths) != known.get("paths"):
            raise refusal
        note(f"note: {places} {'is gone' if gone else 'has changed'}; the run goes on with the tokens made of it")


def _tell_repeated(run: RunDirectory, config: TrainConfig, note: Callable[[str], None]) -> None:
    """Say so if the run kept tokens for fewer steps than it is to do now."""
    report = run.record.get("data", {}).get("train", {})
    enough, kept = _enough(config), report.get("enough")
    if report.get("read_to") and kept and (enough is None or enough > kept):
        note(
            f"note: the data were read up to {report['read_to']}, for the steps named at first; "
            f"further steps go over the same tokens again"
        )


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


def _tokens(
    run: RunDirectory,
    name: str,
    config: TrainConfig,
    paths: tuple[str, ...] | None,
    examples: Examples | None,
    model: Model,
    prepare: Prepare,
) -> Mapping[str, Any]:
    """Make a token file that the model can read; what is to be said of it."""
    path = run.tokens / f"{name}.tokens"
    enough = _enough(config) if name == "train" else None
    source, most = config.source(paths or ()), config.seq_len or model.config.max_position_embeddings
    report = make_tokens(path, source, config.sequence, most, examples, model, prepare, enough)
    file = TokenFile(path)
    file.check(model.config.vocab_size)
    if report is not None:
        return report.to_json()
    return counts(file)


def _enough(config: TrainConfig) -> int | None:
    """Tokens that surely fill every batch of the run's steps, however they are packed, and what is held out of them;
    None: each is used."""
    if config.steps is None:
        return None
    trained = config.steps * config.most_step_tokens
    return most_before(trained, config) if config.eval_data is None and config.eval_share else trained
