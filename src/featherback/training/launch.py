"""From options to a run directory that is ready to train: everything that can go wrong is found here."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from featherback import kernels, models
from featherback.adapters.peft import base_model_name
from featherback.data.batch import IGNORE
from featherback.data.launch import prepare_in_subprocess
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.errors import FeatherbackError
from featherback.host.machine import Baseline
from featherback.models.model import Model
from featherback.training import checkpoint
from featherback.training.choose import plan_for, worker_baseline, worker_environment
from featherback.training.config import DEFAULT_EPOCHS, TrainConfig
from featherback.training.run_directory import RUN_FILE, RunDirectory, check_new, plan_from_json
from featherback.version import __version__

TokenList = npt.ArrayLike
Examples = Iterable[TokenList | tuple[TokenList, TokenList]]
"""Token lists, or pairs of tokens and labels (-100 = not trained)."""


def prepare_run(
    config: TrainConfig,
    resume: bool = False,
    data: Examples | None = None,
    eval_data: Examples | None = None,
    model: Model | None = None,
    baseline: Callable[[], Baseline] = worker_baseline,
    note: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> RunDirectory:
    """Check the options against the model, choose the plan, tokenise the data, begin the directory.

    `data`, `eval_data`: examples that are tokens already, in place of the files, which are tokenised in a
    process of its own. `baseline` finds what the process that will train holds to begin with. With `resume`,
    the run that is there is taken up instead, with its own token files. `note` is called with messages for the user.
    """
    opened = model or models.load(config.model)
    config = config.for_model(opened)
    if resume:
        return _take_up(config, opened, baseline, note)
    if config.steps is None and config.epochs is None:
        config = replace(config, epochs=DEFAULT_EPOCHS)
    existed = Path(config.out).exists()
    check_new(Path(config.out))
    plan = _plan(config, opened, baseline)
    run = RunDirectory.create(
        config.out, {**_record(config), "plan": plan, "base_model": base_model_name(opened)}
    )
    with run.locked():
        run.begin_tokens()
        try:
            reports = {"train": _tokens(run, "train", config, config.data, data, opened)}
            if config.eval_data is not None:
                reports["eval"] = _tokens(run, "eval", config, config.eval_data, eval_data, opened)
            run.update(data=reports)
        except BaseException:
            shutil.rmtree(run.tokens if existed else run.path, ignore_errors=True)
            raise
    return run


def worker_command(run: RunDirectory, *flags: str) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of the training process."""
    return [sys.executable, "-m", "featherback.training.worker", str(run.path), *flags], worker_environment()


def _plan(config: TrainConfig, model: Model, baseline: Callable[[], Baseline]) -> dict[str, Any]:
    return asdict(plan_for(config, model, baseline))


def _take_up(
    config: TrainConfig, model: Model, baseline: Callable[[], Baseline], note: Callable[[str], None]
) -> RunDirectory:
    """The run that `config` continues. Its record is written last, so that a refused resume leaves it unchanged."""
    run = RunDirectory.open(config.out)
    with run.locked():
        earlier = run.config
        if config.steps is None and config.epochs is None:
            config = replace(config, steps=earlier.steps, epochs=earlier.epochs)
        config.check_resume(earlier.for_model(model))
        if config.eval_data is not None and earlier.eval_data is None:
            raise FeatherbackError(f"Cannot resume {config.out} with --eval-data: the run was begun without.")
        done = checkpoint.latest_step(run.path)
        if config.steps is not None and config.steps < done:
            raise FeatherbackError(
                f"{config.out} has done {done} steps already, more than --steps {config.steps}; "
                f"name at least as many."
            )
        known = plan_from_json(run.record.get("plan")) is not None
        # As long as these are the same the plan stays, and with it every bit.
        if not known or (config.memory, config.threads) != (earlier.memory, earlier.threads):
            run.record["plan"] = _plan(config, model, baseline)
        else:
            run.plan_of(model.blocks)
        if not known:
            note(
                f"note: {run.path / RUN_FILE} holds no plan of this version of Featherback; "
                f"the plan is made anew"
            )
        run.update(configuration=config.to_json())
    return run


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
    run: RunDirectory, name: str, config: TrainConfig, source: str, examples: Examples | None, model: Model
) -> Mapping[str, Any]:
    """Make a token file; what is to be said of it."""
    path = run.tokens / f"{name}.tokens"
    if examples is None:
        return prepare_in_subprocess(config.model, source, path, config.seq_len).to_json()
    _write_examples(path, examples, config.seq_len, model.config.vocab_size)
    file = TokenFile(path)
    return {"sequences": len(file), "tokens": file.n_tokens, "supervised_tokens": file.n_targets}


def _write_examples(path: Path, examples: Examples, seq_len: int, vocab_size: int) -> None:
    with TokenFileWriter(path) as writer:
        for number, example in enumerate(examples):
            tokens, labels = example if isinstance(example, tuple) else (example, example)
            ids, wanted = np.asarray(tokens), np.asarray(labels)
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
