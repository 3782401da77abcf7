"""The process that computes a node's gradient: `python -m featherback.federated.gradient_process FOLDER`.

It keeps the node's memory budget, whatever Flower's process takes. The folder has the job (`JOB`) and the adapter
(`START`); the gradient is written beside them in the same format (`GRADIENT`), and the numbers are printed as JSON.
`planned` and `write_job` run in Flower's process, which starts this one.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from featherback import methods, models, optim
from featherback.core.decode import Positive, decode, encode
from featherback.core.failure import report
from featherback.core.files import json_checksum, read_json, write_json
from featherback.core.signals import exit_with
from featherback.core.terminal import open_streams, say
from featherback.data.token_file import TokenFile
from featherback.engine import kernels
from featherback.engine.formats import fingerprint
from featherback.engine.host.maps import MapWatch
from featherback.engine.host.meter import Meter
from featherback.exports import formats
from featherback.exports.base_model import base_model_name
from featherback.methods.base import Draw
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.runs import guard
from featherback.runs.config import TrainConfig
from featherback.runs.stream import BatchStream, Group
from featherback.runs.worker_process import worker_baseline


@dataclass(frozen=True)
class GradientJob:
    """What the process needs to compute a gradient."""

    configuration: TrainConfig
    plan: Plan
    tokens: str  #: path of the token file
    step: Positive
    base: str  #: name of the base model


@dataclass(frozen=True)
class Planned:
    """A plan, and a checksum of what it was made for."""

    asked: str
    plan: Plan


JOB, START, GRADIENT = "job.json", "start", "gradient"


def with_length(config: TrainConfig, model: Model, tokens: TokenFile) -> TrainConfig:
    """Return the options with the sequence length that the data need, if none was given, as `train` chooses it."""
    if config.seq_len is not None or (tokens.longest <= config.sequence and config.batch_size is None):
        return config
    return replace(config, seq_len=min(tokens.longest, model.config.max_position_embeddings))


def planned(file: Path, config: TrainConfig, model: Model) -> Plan:
    """Return the plan of a node's gradients. Raises BudgetError if `config.memory` is too small.

    The plan is kept in `file`, because planning takes longer than a short step, and so that every step rounds in the
    same way.
    """
    asked = json_checksum([encode(config), fingerprint.of_store(model.store)])
    if file.exists() and (kept := decode(Planned, read_json(file), file)).asked == asked:
        return kept.plan
    from featherback.optim.rules.sgd import SGD
    from featherback.runs.choose import Computes, job_of  # the process that computes does not need the planner

    kernels.set_threads(config.threads or kernels.default_threads())
    job = replace(job_of(config, model), rule=SGD())  # has no states: the optimiser is the server's
    plan = Computes.of(config, model).plan(job, config.memory, worker_baseline())
    write_json(file, encode(Planned(asked, plan)))
    return plan


def write_job(folder: Path, config: TrainConfig, plan: Plan, tokens: Path, number: int, adapter: Adapter) -> None:
    """Write what the process needs to compute the gradient of step `number`, counted from 1, at `adapter`."""
    base = base_model_name(adapter.model)  # here, because it loads the model's vocabulary
    formats.of_run(adapter.form).save(adapter, folder / START, base)
    write_json(folder / JOB, encode(GradientJob(config, plan, str(tokens), number, base)))


def batches(tokens: TokenFile, config: TrainConfig, number: int) -> Group:
    """Return the batches of step `number`, counted from 1."""
    stream = BatchStream(tokens, config.batching, config.seed)
    for _ in range(number - 1):
        stream.take(config.accumulate)  # only counts
    stream.seek(stream.position)
    group = stream.take(config.accumulate)
    assert group is not None  # the stream has no end
    return group


def compute(folder: Path) -> dict[str, Any]:
    """Compute the gradient of the job in a folder. Return its mean loss, its supervised tokens and the peak memory."""
    meter = Meter()
    meter.start()
    job = decode(GradientJob, read_json(folder / JOB), folder / JOB)
    config = job.configuration
    kernels.set_threads(config.threads or kernels.default_threads())
    model, tokens = models.load(config.model), TokenFile(Path(job.tokens))
    with MapWatch([*model.maps, *tokens.maps()], model.close) as maps:
        loss, terms = _gradient(folder, job, model, batches(tokens, config, job.step))
        maps.check()
    meter.stop()
    return {"loss": loss, "tokens": terms, "peak_rss_mb": meter.peak_rss_mb}


def _gradient(folder: Path, job: GradientJob, model: Model, group: Group) -> tuple[float, int]:
    """Write the gradient of a group of batches; return their mean loss and their supervised tokens."""
    config, plan, step = job.configuration, job.plan, job.step
    kind, files = formats.of_run(config.form), folder if plan.states == "file" else None
    options = methods.OPTIONS.make(config.method, config.method_options)
    loss, first = 0.0, 0
    with closing(formats.load(model, folder / START, files and files / "parameters.f32", kind)) as adapter:
        size = adapter.parameters.size
        with closing(adapter.parameters.zeros_like(size, files and files / "gradients.f32")) as gathered:
            with closing(methods.create(config.method, model, adapter, plan, folder, options)) as method:
                for batch in group.batches:
                    loss += method.gradients(batch, 1 / group.n_terms, gathered, Draw(config.seed, step - 1, first))
                    first += batch.n_tokens
            guard.check_finite(optim.global_norm(gathered), "the gradient", step, step - 1, model)
            with adapter.holding(gathered):
                kind.save(adapter, folder / GRADIENT, job.base)
    return loss / group.n_terms, group.n_terms


def main(arguments: list[str]) -> int:
    """Compute the gradient of the job in the folder `arguments[0]`; return the exit status."""
    try:
        say(json.dumps(compute(Path(arguments[0]))))
    except Exception as error:
        return report(error, debug=False)
    return 0


if __name__ == "__main__":
    open_streams(lasting=True)
    exit_with(lambda: main(sys.argv[1:]))
