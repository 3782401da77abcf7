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
import numpy.typing as npt

from featherback import kernels, models
from featherback.adapters.peft import base_model_name
from featherback.data.batch import IGNORE
from featherback.data.launch import prepare_in_subprocess
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.errors import FeatherbackError
from featherback.host import fingerprint
from featherback.host.machine import Baseline
from featherback.host.maps import MapWatch
from featherback.host.priority import step_back
from featherback.host.sensors import Sensors
from featherback.models.model import Model
from featherback.terminal import Preparing, complain
from featherback.training import checkpoint
from featherback.training.choose import plan_for, worker_baseline, worker_environment
from featherback.training.config import DEFAULT_EPOCHS, TrainConfig
from featherback.training.interrupt import ended_by_signals, held_signals
from featherback.training.run_directory import RUN_FILE, RunDirectory, check_new, plan_from_json
from featherback.version import __version__

TokenList = npt.ArrayLike
Examples = Iterable[TokenList | tuple[TokenList, TokenList]]
"""Token lists, or pairs of tokens and labels (-100 = not trained)."""


def prepare_run(
    config: TrainConfig,
    data: Examples | None = None,
    eval_data: Examples | None = None,
    model: Model | None = None,
    baseline: Callable[[], Baseline] = worker_baseline,
) -> RunDirectory:
    """Check the options against the model, choose the plan, tokenise the data, begin the directory.

    `data`, `eval_data`: examples that are tokens already, in place of the files, which are tokenised in a
    process of its own. `baseline` finds what the process that will train holds to begin with. The run that is
    returned is locked: nobody else can train it before it is `release`d or this process ends. A signal that would end
    the process raises KeyboardInterrupt, and nothing is left behind.
    """
    with ended_by_signals():
        _heed(config)
        opened = model or models.load(config.model)
        if config.data is None and data is None:
            raise FeatherbackError("--data is missing: name the file to train on.")
        if config.steps is None and config.epochs is None:
            config = replace(config, epochs=DEFAULT_EPOCHS)
        config = config.for_model(opened)
        existed = Path(config.out).exists()
        check_new(Path(config.out))
        plan = _plan(config, opened, baseline)
        known = {"plan": plan, "base_model": base_model_name(opened), "model": fingerprint.of_model(opened)}
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
                reports = {
                    name: _tokens(run, name, config, *given, opened) for name, given in sources.items()
                }
                maps.check()
            files = {name: path for name, (path, examples) in sources.items() if examples is None and path}
            run.update(data=reports, sources={name: _source(path) for name, path in files.items()})
        except BaseException:
            shutil.rmtree(run.tokens if existed else run.path, ignore_errors=True)
            run.release()
            raise
    return run


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
    others are the run's. `note` is called with messages for the user. FeatherbackError leaves the record as it was.
    """
    with ended_by_signals():
        run = RunDirectory.take(named["out"])
        try:
            earlier = run.config
            opened = model or models.load(named["model"])
            if run.record.get("model") != fingerprint.of_model(opened):
                raise FeatherbackError(
                    f"Cannot resume {run.path} with {opened.path}: it is not the model that the run was begun with; "
                    f"bring that one back, or begin another run."
                )
            config = earlier.continued(named, opened)
            _heed(config)
            if config.eval_data is not None and earlier.eval_data is None:
                raise FeatherbackError(
                    f"Cannot resume {run.path} with --eval-data: the run was begun without."
                )
            _check_data(run, "train", "--data", named.get("data"), data, config, opened, note)
            _check_data(run, "eval", "--eval-data", named.get("eval_data"), eval_data, config, opened, note)
            done = checkpoint.latest_step(run.path)
            if config.steps is not None and config.steps < done:
                raise FeatherbackError(
                    f"{run.path} has done {done} steps already, more than --steps {config.steps}; "
                    f"name at least as many."
                )
            known = plan_from_json(run.record.get("plan")) is not None
            # As long as these are the same the plan stays, and with it every bit.
            if not known or (config.memory, config.threads) != (earlier.memory, earlier.threads):
                run.record["plan"] = _plan(config, opened, baseline)
            else:
                run.plan_of(opened.blocks)
            if not known:
                note(
                    f"note: {run.path / RUN_FILE} holds no plan of this version of Featherback; "
                    f"the plan is made anew"
                )
            config = replace(config, data=earlier.data, eval_data=earlier.eval_data)
            _tell_repeated(run, config, note)
            run.update(configuration=config.to_json())
        except BaseException:
            run.release()
            raise
    return run


def worker_command(run: RunDirectory, *flags: str) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of the training process, which is to be started at once: the run is released for it."""
    run.release()
    return _worker(run, *flags)


def become_worker(run: RunDirectory, *flags: str) -> NoReturn:
    """Replace this process, with all it imported, by the small one that trains. The run stays locked throughout.

    A signal that comes meanwhile is that one's first.
    """
    lock = run.pass_lock()
    with held_signals() as held:
        passed = [f"--signals={held}", *([] if lock is None else [f"--lock={lock}"])]
        command, environment = _worker(run, *flags, *passed)
        os.execve(command[0], command, environment)


def _worker(run: RunDirectory, *flags: str) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "featherback.training.worker", str(run.path), *flags], worker_environment()


def _heed(config: TrainConfig) -> None:
    """Take what the user wants of the machine to heart; FeatherbackError if it has not the sensors for it."""
    Sensors(config.pause_on or ())
    if config.nice is not None:
        step_back(config.nice)


def _plan(config: TrainConfig, model: Model, baseline: Callable[[], Baseline]) -> dict[str, Any]:
    return asdict(plan_for(config, model, baseline))


def _source(path: str) -> dict[str, str]:
    """What is recorded of a file of data, to know it again."""
    return {"path": os.path.abspath(path), "fingerprint": fingerprint.of_file(Path(path))}


def _check_data(
    run: RunDirectory,
    name: str,
    flag: str,
    path: str | None,
    examples: Examples | None,
    config: TrainConfig,
    model: Model,
    note: Callable[[str], None],
) -> None:
    """FeatherbackError if data are named to resume a run that was begun with others."""
    given = flag if examples is not None else f"{flag} {path}"
    refusal = FeatherbackError(
        f"Cannot resume {run.path} with {given}: the run was begun with other data, whose tokens it keeps; "
        f"leave {flag} out, or begin another run."
    )
    if examples is not None:
        with tempfile.TemporaryDirectory(prefix="featherback-") as folder:
            file = Path(folder) / "given.tokens"
            _write_examples(file, examples, config.seq_len, model.config.vocab_size)
            if TokenFile(file).checksum != TokenFile(run.tokens / f"{name}.tokens").checksum:
                raise refusal
    elif path is not None:
        known = run.record.get("sources", {}).get(name)
        if not isinstance(known, dict):
            raise refusal
        there = Path(path).is_file()
        if there and _source(path)["fingerprint"] == known.get("fingerprint"):
            return
        if os.path.abspath(path) != known.get("path"):
            raise refusal
        note(
            f"note: {path} {'has changed' if there else 'is gone'}; the run goes on with the tokens made of it"
        )


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
        "versions": {
            "featherback": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "instruction_set": kernels.describe(),
        },
    }


def _tokens(
    run: RunDirectory,
    name: str,
    config: TrainConfig,
    source: str | None,
    examples: Examples | None,
    model: Model,
) -> Mapping[str, Any]:
    """Make a token file that the model can read; what is to be said of it."""
    path = run.tokens / f"{name}.tokens"
    report: Mapping[str, Any] = {}
    if examples is not None:
        _write_examples(path, examples, config.seq_len, model.config.vocab_size)
    elif source is not None:
        enough = _enough(config) if name == "train" else None
        with Preparing(source) as shown:
            report = prepare_in_subprocess(
                config.model, source, path, config.seq_len, shown.update, enough
            ).to_json()
    file = TokenFile(path)
    file.check(model.config.vocab_size)
    if report:
        return report
    return {"sequences": len(file), "tokens": file.n_tokens, "supervised_tokens": file.n_targets}


def _enough(config: TrainConfig) -> int | None:
    """Tokens that surely fill every batch of the run's steps, however they are packed; None: each is used."""
    if config.steps is None:
        return None
    return config.steps * config.accumulate * config.batch_size * config.seq_len


def _tokens_and_labels(example: Any, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A tuple of two lists is tokens and labels; anything else, a tuple of numbers too, is tokens alone."""
    pair = (
        isinstance(example, tuple) and len(example) == 2 and not all(np.ndim(part) == 0 for part in example)
    )
    tokens, labels = example if pair else (example, example)
    try:
        return np.asarray(tokens), np.asarray(labels)
    except ValueError:  # lists of different lengths in it
        raise FeatherbackError(f"Example {number} is no list of token ids.") from None


def _write_examples(path: Path, examples: Examples, seq_len: int, vocab_size: int) -> None:
    with TokenFileWriter(path) as writer:
        for number, example in enumerate(examples):
            ids, wanted = _tokens_and_labels(example, number)
            if ids.ndim != 1 or ids.size == 0 or ids.shape != wanted.shape or ids.dtype.kind not in "iu":
                raise FeatherbackError(
                    f"Example {number} is no list of token ids, or its labels are of another length."
                )
            if ids.min() < 0 or ids.max() >= vocab_size:
                raise FeatherbackError(f"Example {number} has a token id outside 0..{vocab_size - 1}.")
            if ids.size > seq_len:
                raise FeatherbackError(
                    f"Example {number} has {ids.size} tokens, more than the sequence length {seq_len}."
                )
            trained = wanted != IGNORE
            if not np.array_equal(wanted[trained], ids[trained]):
                raise FeatherbackError(
                    f"Example {number} has a label that is neither its token nor {IGNORE}."
                )
            writer.add(ids, trained)
        if not writer.n_targets:
            raise FeatherbackError(
                "The data have no trained token: every label is -100, or every example has one token."
            )
