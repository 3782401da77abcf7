"""What a node does with its data: train for a round, evaluate an adapter, or compute the gradient of one batch.

Each of them runs in a process of its own, which keeps the node's memory budget, whatever Flower's process takes.
Training and evaluation are the commands `featherback train` and `featherback evaluate`. A round that was interrupted is
resumed, and one that is complete is not repeated.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from featherback import models
from featherback.core import private
from featherback.core.files import atomic_folder, json_checksum, make_folder, read_json, remove_abandoned, write_json
from featherback.data.launch import prepare_in_subprocess
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.base_model import base_model_name
from featherback.federated import gradient_process
from featherback.federated.pieces import Pieces
from featherback.federated.settings import TABLE, Federation, Node
from featherback.federated.strategies.base import Arrays
from featherback.models.adapter import Adapter
from featherback.models.hub.locate import locate
from featherback.models.model import Model
from featherback.runs.by_name import fields_of
from featherback.runs.config import TrainConfig
from featherback.runs.run_directory import RUN_FILE, RunDirectory
from featherback.runs.stream import BatchStream, Group
from featherback.runs.worker_process import worker_environment
from featherback.worker import ENDED

ATTEMPTS = 3
"""How often a round's training is started if its process is killed."""
RUN, START, JOB, OPTIONS, LOG = "run", "start", "job.json", "options.yaml", "log.txt"
"""A round's training, the adapter that it starts from, what it was asked to do, and what it said."""
WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """What the server asks for: the round's number and the federation's name, both for folders, and the pull."""

    federation: str
    number: int
    proximal: float = 0.0


@dataclass(frozen=True)
class Result:
    """What leaves the node. `tokens`: supervised tokens. `measures`: further numbers by name."""

    arrays: Arrays
    tokens: int
    measures: Mapping[str, float]


def open_model(node: Node) -> Model:
    """Open the node's model."""
    return models.load(locate(node.model))


def pieces(federation: Federation, node: Node, model: Model, job: Job) -> Pieces:
    """Return how messages hold the tensors of the federation's adapter."""
    with closing(Adapter(model, _config(federation, node, model, job).form, None)) as adapter:
        return Pieces(adapter.shapes())


def fit(federation: Federation, node: Node, model: Model, job: Job, arrays: Arrays) -> Result:
    """Train for one round from the adapter `arrays`, and return the adapter then."""
    options = _options(federation, job)
    folder = Path(node.work) / job.federation / f"round-{job.number:06d}"
    with _adapter(_config(federation, node, model, job), model, arrays) as adapter:
        _begin(folder, adapter, base_model_name(model), [options, list(node.data), checksum(arrays)])
    run = _trained(folder, node, options)
    with closing(formats.load(model, run.path)) as trained:
        state = trained.state()
    summary = run.record.summary
    assert summary is not None  # the run has ended
    assert summary.final_loss is not None
    measures = {
        "loss": summary.final_loss,
        "steps": float(summary.steps),
        "seconds": summary.seconds,
        "peak_rss_mb": summary.peak_rss_mb,
    }
    return Result(state, _supervised(run), measures)


def evaluate(federation: Federation, node: Node, model: Model, job: Job, arrays: Arrays) -> Result:
    """Measure the loss of an adapter on the node's held-out data. `tokens` is 0 if it has none."""
    if node.eval_data is None:
        return Result({}, 0, {"eval_loss": 0.0})
    config = _config(federation, node, model, job)
    folder = Path(node.work) / job.federation / "evaluated"
    with _adapter(config, model, arrays) as adapter:
        formats.of_run(adapter.form).save(adapter, folder, base_model_name(model))
    options: list[Any] = ["--seq-len", config.seq_len] if config.seq_len else []
    options += ["--cut"] if config.cut else []
    options += ["--skip-bad"] if config.skip_bad else []
    options += [word for pair in config.columns or () for word in ("--map", pair)]
    options += [word for pair in config.table or () for word in ("--table", pair)]
    options += [word for name in config.me or () for word in ("--me", name)]
    options += _limits(node)
    data = [word for path in node.eval_data for word in ("--data", path)]
    options += ["--compute", config.compute]
    command = ["evaluate", model.path, *data, "--adapter", folder, "--json", *options]
    said = json.loads(_checked(_run(command, folder / LOG), "featherback evaluate").stdout)
    return Result({}, int(said.get("tokens", said.get("texts"))), {"eval_loss": float(said["loss"])})


def gradient(federation: Federation, node: Node, model: Model, job: Job, arrays: Arrays) -> Result:
    """Return the gradient of the mean loss of batch `job.number`, counted from 1, at the adapter `arrays`.

    The node's data are divided into batches as for training, so a node that joins later or starts again goes on with
    the batch of the round. With `accumulate`, it is a group of batches.
    """
    began = time.perf_counter()
    limits = fields_of({"memory": node.memory, "threads": node.threads}, "The node's configuration")
    folder = Path(node.work) / job.federation
    config = replace(_config(federation, node, model, replace(job, number=0)), out=str(folder), **limits)
    tokens = _tokens(node, config, model, job)
    config = gradient_process.with_length(config, model, tokens)
    plan = gradient_process.planned(folder / "gradient.json", config, model)
    with _scratch(folder / "gradient") as place:
        with _adapter(config, model, arrays) as adapter:
            gradient_process.write_job(place, config, plan, tokens.path, job.number, adapter)
        done = _run_module(gradient_process.__name__, [place], place / LOG, worker_environment())
        said = json.loads(_checked(done, "Computing the gradient").stdout)
        with closing(formats.load(model, place / gradient_process.GRADIENT)) as found:
            state = found.state()
    measures = {"loss": said["loss"], "seconds": time.perf_counter() - began, "peak_rss_mb": said["peak_rss_mb"]}
    return Result(state, said["tokens"], measures)


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """Provide an empty folder beside `path`, and delete it at the end. Delete those that killed processes left."""
    made = path.with_name(private.temporary_name(path.name))
    remove_abandoned(path)
    make_folder(made)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def batches(node: Node, config: TrainConfig, model: Model, job: Job) -> Group:
    """Return the batches of step `job.number`, counted from 1."""
    tokens = _tokens(node, config, model, job)
    return gradient_process.batches(tokens, gradient_process.with_length(config, model, tokens), job.number)


def _tokens(node: Node, config: TrainConfig, model: Model, job: Job) -> TokenFile:
    """Return the node's data as tokens, which are prepared once."""
    path = Path(node.work) / job.federation / "train.tokens"
    if not path.exists():
        make_folder(path.parent)
        prepare_in_subprocess(model.path, config.source_for(model, node.data), path, config.sequence)
    file = TokenFile(path)
    file.check(model.config.vocab_size)
    return file


def _options(federation: Federation, job: Job) -> dict[str, Any]:
    """Return the options of the round's training as a user would write them. Each round shuffles the data anew."""
    pull = {"proximal": job.proximal} if job.proximal else {}
    return {**federation.train, **pull, "seed": federation.train.get("seed", 0) + job.number}


def _config(federation: Federation, node: Node, model: Model, job: Job) -> TrainConfig:
    named = fields_of(_options(federation, job), TABLE)
    return TrainConfig.of(model=str(model.path), out="", data=node.data, **named).for_model(model)


@contextmanager
def _adapter(config: TrainConfig, model: Model, arrays: Arrays) -> Iterator[Adapter]:
    """Provide an adapter with these values. Raises FeatherbackError if they do not fit the model."""
    with closing(Adapter(model, config.form, None)) as adapter:
        adapter.load_state(arrays)
        yield adapter


def _begin(folder: Path, adapter: Adapter, base: str, asked: list[Any]) -> None:
    """Make the folder of a round, unless it exists and was made for the same work. Delete those of other rounds."""
    mark = {"asked": json_checksum(asked)}
    if (folder / JOB).exists() and read_json(folder / JOB) != mark:
        shutil.rmtree(folder)
    for other in folder.parent.glob("round-*") if folder.parent.is_dir() else ():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    with atomic_folder(folder) as made:
        if made != folder:
            formats.of_run(adapter.form).save(adapter, made / START, base)
            write_json(made / JOB, mark)


def checksum(arrays: Arrays) -> str:
    """Return a checksum of tensors and their names."""
    found = 0
    for name in sorted(arrays):
        found = zlib.crc32(np.ascontiguousarray(arrays[name]).tobytes(), zlib.crc32(name.encode(), found))
    return f"{found:08x}"


def _trained(folder: Path, node: Node, options: Mapping[str, Any]) -> RunDirectory:
    """Train or resume the run in a round's folder, and return it once it is complete.

    A training process whose Flower process died goes on, so it is waited for.
    """
    path = folder / RUN
    for _ in range(ATTEMPTS):
        if (found := _complete(path)) is not None:
            return found
        done = _run(_command(folder, node, options), folder / LOG)
        if done.returncode >= 0:
            _checked(done, "featherback train")
    if (found := _complete(path)) is not None:
        return found
    raise FeatherbackError(f"The training process of {folder.name} was killed {ATTEMPTS} times.")


def _complete(path: Path) -> RunDirectory | None:
    """Return the run if it has ended; None if it must be started or resumed. Waits for a process that trains it."""
    if not (path / RUN_FILE).exists():
        return None
    while True:
        run = RunDirectory.open(path)
        try:
            run.lock()
        except FeatherbackError:
            time.sleep(WAIT_SECONDS)
            continue
        run.release()
        return run if RunDirectory.open(path).record.status in ("finished", "stopped early") else None


def _command(folder: Path, node: Node, options: Mapping[str, Any]) -> list[object]:
    """Return the command that trains or resumes a round's run."""
    path = folder / RUN
    limits = _limits(node)
    if (path / RUN_FILE).exists():
        return ["train", "--out", path, "--resume", *limits]
    write_json(folder / OPTIONS, options)  # JSON is YAML
    data = [word for file in node.data for word in ("--data", file)]
    return ["train", node.model, "--config", folder / OPTIONS, *data, "--from", folder / START, "--out", path, *limits]


def _limits(node: Node) -> list[str]:
    memory = ["--memory", node.memory] if node.memory else []
    return memory + (["--threads", str(node.threads)] if node.threads else [])


def _run(words: list[Any], log: Path) -> subprocess.CompletedProcess[str]:
    """Run a featherback command to its end, and return its output. Its messages go to the file `log`."""
    return _run_module("featherback", words, log)


def _run_module(
    module: str, words: list[Any], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module` to its end, and return its output. Its messages go to the file `log`."""
    command = [sys.executable, "-m", module, *map(str, words)]
    with private.create_anew(log) as messages:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages, text=True, env=environment
        )
        messages.seek(0)
        said = messages.read().decode(errors="replace")
    return subprocess.CompletedProcess(command, done.returncode, done.stdout, said)


def _checked(done: subprocess.CompletedProcess[str], what: str) -> subprocess.CompletedProcess[str]:
    """Raise the error of a process, if it has failed, as FeatherbackError. `what`: what it did, for the message."""
    if done.returncode in ENDED:
        return done
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    reason = (errors or lines or [f"exit status {done.returncode}"])[-1]
    raise FeatherbackError(f"{what} has failed: {reason}")


def _supervised(run: RunDirectory) -> int:
    """Return the number of supervised tokens on which a complete run has trained."""
    config, summary = run.config, run.record.summary
    assert summary is not None  # it is complete
    stream = BatchStream(TokenFile(run.tokens / "train.tokens"), config.batching, config.seed, config.epochs)
    groups = (stream.take(config.accumulate) for _ in range(summary.steps))
    return sum(group.n_terms for group in groups if group is not None)
