"""Creates a new run: checks the options, and writes the data to the run's directory as tokens, with a memory plan."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from featherback.core.files import check_free_space, make_folder
from featherback.core.naming import argument, argument_is
from featherback.core.system import machine
from featherback.data.report import PrepareReport
from featherback.data.source import STDIN
from featherback.data.token_file import TokenFile
from featherback.engine import kernels
from featherback.engine.budget import BudgetError
from featherback.engine.formats import fingerprint
from featherback.engine.host.maps import MapWatch
from featherback.engine.host.sensors import Sensors
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.base_model import base_model_name
from featherback.methods.memory.plan import Plan
from featherback.models.model import Model
from featherback.runs.config import TrainConfig
from featherback.runs.examples import Examples, make_tokens
from featherback.runs.held_out import count_also_trained, counts, tokens_before_split
from featherback.runs.lengths import settle
from featherback.runs.loggers import check_installed
from featherback.runs.panels.optimisation import DEFAULT_EPOCHS
from featherback.runs.record import DataFiles, Machine, Part, TokenCounts, Versions
from featherback.runs.replay import AUTO, arrange, check_replay, prepare_replay
from featherback.runs.run_directory import RunDirectory, check_new
from featherback.runs.teacher import with_teacher
from featherback.runs.teacher_pass import plan_teacher
from featherback.runs.tools import Tools
from featherback.version import __version__


def new_run(config: TrainConfig, tools: Tools, plan: Plan | None = None) -> RunDirectory:
    """Create, lock and return a run directory with the data as tokens, their held-out part and the memory plan.

    `plan`: a plan that was made earlier for these options, to be used again. The lock is held until `release`, or until
    this process ends. Options and paths are checked before anything is measured, converted or written. If the
    preparation fails, or a signal raises KeyboardInterrupt, everything it made is deleted. Raises BudgetError if no
    plan fits in the budget.
    """
    apply_machine_options(config)
    _check_paths(config, tools.examples)
    model = tools.open(config.model, config.quantize, without_converting=True)
    config = _complete(with_teacher(config, model), model)
    model = tools.open(config.model, config.quantize)
    base = base_model_name(model)
    run = RunDirectory.create(
        config.out,
        configuration=config,
        versions=Versions(featherback=__version__, python=platform.python_version(), numpy=np.__version__),
        machine=Machine(
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            cores=os.cpu_count(),
            instruction_set=kernels.describe_instruction_set(),
        ),
        base_model=base,
        model=fingerprint.of_store(model.store),
    )
    run.lock()
    try:
        run.begin_tokens()
    except BaseException:
        run.abandon()
        raise
    try:
        _prepare_data(run, config, model, tools)
        if config.start is not None:
            _copy_start(run, config.start, model, base)
        settle(run, model, tools.baseline, plan)
        arrange(run)
        plan_teacher(run, tools.baseline)
        return run
    except BaseException as error:
        run.delete()
        if isinstance(error, BudgetError) and STDIN in (*(config.data or ()), *(config.eval_data or ())):
            raise FeatherbackError(
                str(error)
            ) from None  # standard input can be read only once, so the command cannot start over
        raise


def _prepare_data(run: RunDirectory, config: TrainConfig, model: Model, tools: Tools) -> None:
    """Write the data of a run to its directory as tokens, and record what they are."""
    data: dict[Part, Any] = {"train": config.data}
    if config.eval_data is not None:
        data["eval"] = config.eval_data
    _check_stdin(config, tools.examples, run.tokens)
    with MapWatch(model.maps, model.close) as maps:
        reports = {name: _tokens(run, name, config, model, tools) for name in data}
        prepare_replay(run, config, model, tools)
        maps.check()
    if "eval" in reports:
        eval_file, train_file = (run.tokens / f"{name}.tokens" for name in ("eval", "train"))
        reports["eval"] = replace(reports["eval"], **count_also_trained(eval_file, train_file))
    files = {name: paths for name, paths in data.items() if paths and name not in tools.examples}
    run.update(data=reports, sources={name: source_record(paths) for name, paths in files.items()})


def _check_paths(config: TrainConfig, examples: Mapping[str, Examples]) -> None:
    """Raise FeatherbackError if data cannot be read, or the output directory cannot be used."""
    from featherback.data.readers import check_use, data_files  # not in the training process

    if config.data is None and "train" not in examples:
        raise FeatherbackError(
            f"{argument('data')} is missing; give the file to train on, for example "
            f"{argument('data', 'examples.jsonl')}."
        )
    paths = _paths(config, examples)
    source = config.source(tuple(path for path in paths if path != STDIN))
    files = data_files(source)
    for file in files:
        _ = file.not_read  # lists a folder, which raises an error if it cannot be read
    if STDIN not in paths:
        check_use(source, files)
    check_replay(config)
    check_new(Path(config.out))


def _paths(config: TrainConfig, examples: Mapping[str, Examples]) -> tuple[str, ...]:
    """Return the paths of all data that are read from files."""
    data = {"train": config.data, "eval": config.eval_data}
    return tuple(path for name, paths in data.items() if name not in examples for path in paths or ())


def _check_stdin(config: TrainConfig, examples: Mapping[str, Examples], folder: Path) -> None:
    """Copy standard input to `folder` if it is read, and check what `_check_paths` could not check without it."""
    from featherback.data.inputs import spool_stdin  # not in the training process
    from featherback.data.readers import check_use, data_files

    source = config.source(_paths(config, examples))
    if STDIN in source.paths:
        spool_stdin(folder)
        check_use(source, data_files(source))


def _complete(config: TrainConfig, model: Model) -> TrainConfig:
    """Return the complete options of a new run of `model`; raises FeatherbackError if they do not fit it."""
    if config.steps is None and config.epochs is None:
        config = replace(config, epochs=DEFAULT_EPOCHS)
    if config.replay not in (None, AUTO):
        config = replace(config, replay=os.path.abspath(config.replay))
    if config.start is not None:
        place = os.path.abspath(config.start)  # the run may be resumed from another folder
        config = replace(config.starting_from(formats.form(model, config.start), model), start=place)
    config = config.for_model(model)
    least, answers = config.batching.seq_len, config.most_answers
    if config.seq_len is not None and config.batch_tokens is not None and config.batch_tokens < least:
        most = argument("seq_len", config.seq_len)
        held = "a whole sequence" if answers == 1 else f"{answers} answers"
        raise FeatherbackError(
            f"{argument_is('batch_tokens', config.batch_tokens)}, less than {most if answers == 1 else least}. A "
            f"batch must hold {held}: use at least {argument('batch_tokens', least)}."
        )
    if config.whole is not None:
        from featherback.exports.whole import check_writable, stored_names
        from featherback.runs.choose import job_of

        config.whole.check(model)
        check_writable(model, stored_names(model, config.whole), config.whole.kind, config.dequantize)
        check_free_space(Path(config.out), job_of(config, model).disk_bytes)  # before the model is copied
    return config


def _copy_start(run: RunDirectory, source: str, model: Model, base: str) -> None:
    """Copy the adapter that the run starts from into its directory, using little memory."""
    make_folder(run.start)
    values = run.start / "values"
    adapter = formats.load(model, source, file=values)
    formats.of_run(adapter.form).save(adapter, run.start, base)
    values.unlink()


def apply_machine_options(config: TrainConfig) -> None:
    """Check --pause-on and --log-to, and apply --nice, --threads and --device.

    Raises FeatherbackError if a sensor, a package or the device is missing.
    """
    Sensors(config.pause_on or ())
    check_installed(config.log_to or ())
    if config.nice is not None:
        machine.lower_priority(config.nice)
    config.use_machine()


def source_record(paths: tuple[str, ...]) -> DataFiles:
    """Return the record by which data files are recognised later."""
    return DataFiles(absolute_paths(paths), [fingerprint.of_data(Path(path)) for path in paths if path != STDIN])


def absolute_paths(paths: tuple[str, ...]) -> list[str]:
    """Return the absolute paths of data, so that a run can be resumed from another folder."""
    return [path if path == STDIN else os.path.abspath(path) for path in paths]


def _tokens(
    run: RunDirectory, name: Part, config: TrainConfig, model: Model, tools: Tools
) -> PrepareReport | TokenCounts:
    """Write and check the token file `name` of a run; return its entry in the record."""
    path, paths = run.tokens / f"{name}.tokens", config.data if name == "train" else config.eval_data
    enough = enough_tokens(config) if name == "train" else None
    most = config.seq_len or model.config.max_position_embeddings
    source, examples = config.source_for(model, paths or ()), tools.examples.get(name)
    report = make_tokens(path, source, config.sequence, most, examples, model, tools.encode, enough)
    file = TokenFile(path)
    file.check(model.config.vocab_size)
    return TokenCounts(**counts(file)) if report is None else report


def enough_tokens(config: TrainConfig) -> int | None:
    """Return how many tokens suffice for all steps of a run, however they are packed, including held-out examples.

    None if all of the data are used.
    """
    if config.steps is None:
        return None
    trained = config.steps * config.most_step_tokens
    return tokens_before_split(trained, config) if config.eval_data is None and config.eval_share else trained
