"""Predicts the cost of training with each method, and the largest model that fits in memory. Nothing is trained.

arXiv 2511.11362 compares zeroth-order and first-order training by the largest model that fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from featherback import methods, optim
from featherback.core.sizes import MB
from featherback.engine.formats.types import TensorType
from featherback.engine.host.machine import Baseline, Machine
from featherback.errors import FeatherbackError
from featherback.methods.memory import planner
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import Plan
from featherback.models.architecture.config import QWEN2_5, ModelConfig
from featherback.models.model import Model
from featherback.runs.choose import Computes, computes_of, job_of, job_options
from featherback.runs.config import TrainConfig
from featherback.runs.panels.adapter import USUAL
from featherback.runs.panels.whole import TRAINED

MEMORIES = tuple(amount * MB for amount in (64, 128, 256, 512, 1000, 2000, 4000))


_UNTIMED = Machine(product_rate=1.0, attention_rate=1.0, copy_rate=1.0)  # for questions about memory only


@dataclass(frozen=True)
class MethodOutlook:
    """A method's smallest peak RSS (10^6 bytes), the smallest --memory (MB), and its plan (None if it does not fit).

    With a --device, these are its memory and the smallest --vram.
    """

    method: str
    least_rss_mb: float
    least_memory_mb: int
    plan: Plan | None


def outlook(config: TrainConfig, model: Model, baseline: Baseline, own: Mapping[str, Any]) -> list[MethodOutlook]:
    """Return the outlook of every method with the options and budget of `config`.

    `own`: options of methods; each method takes those that it has.
    """
    computes, found = computes_of(config, model), []
    for name, chosen in _with_each_method(config, own):
        job = job_of(chosen, model)
        least = computes.smallest(job, baseline)
        try:
            plan = computes.plan(job, config.memory, baseline)
        except FeatherbackError:
            plan = None
        found.append(MethodOutlook(name, least / MB, computes.least_budget(least) // MB, plan))
    return found


@dataclass(frozen=True)
class Combination:
    """A combination of what is trained, method and optimiser, with its cost."""

    train: str
    method: str
    optimizer: str
    least_memory_mb: int
    disk_mb: float
    plan: Plan | None  # within the budget; None if it does not fit
    largest: str | None  # size of the largest Qwen2.5 shape that fits the budget or the machine


def combinations(
    config: TrainConfig, model: Model, baseline: Baseline, own: Mapping[str, Any]
) -> Iterator[Combination]:
    """Yield every valid combination of method and optimiser, for adapters and for whole models."""
    computes = Computes.of(config, model)
    limit = min(each for each in (config.budget, computes.least.memory, math.inf) if each is not None)
    for train in TRAINED:
        for name in methods.METHODS.names:
            shared: dict[object, dict[Any, Any]] = {}  # dry runs do not depend on an adapter's optimiser
            for optimizer in optim.RULES.names:
                try:
                    chosen = _combined(config, train, name, optimizer, own).for_model(model)
                except FeatherbackError:  # this combination is not supported
                    continue
                jobs = [job_of(chosen, model), *(_shape_job(shape, chosen) for shape in QWEN2_5.values())]
                if train == "lora":
                    jobs = [replace(job, accounts=shared.setdefault(i, {})) for i, job in enumerate(jobs)]
                yield _combination(chosen, jobs, limit, baseline, computes)


def _combination(
    config: TrainConfig, jobs: Sequence[Job], limit: float, baseline: Baseline, computes: Computes
) -> Combination:
    """Return the cost of one combination. `jobs`: the job of the model, then those of the Qwen2.5 shapes."""
    job, *family = jobs
    least = planner.smallest(job, baseline, computes.least).rss
    try:
        plan = computes.plan(job, config.memory, baseline)
    except FeatherbackError:
        plan = None
    budget, largest = planner.least_budget(least) // MB, None
    for size, other in zip(QWEN2_5, family):  # from the smallest, because dry runs of large ones take long
        if planner.smallest(other, baseline, _UNTIMED).rss > limit:
            break
        largest = size
    return Combination(config.train, config.method, config.optimizer, budget, job.disk_bytes / MB, plan, largest)


def _combined(config: TrainConfig, train: str, method: str, optimizer: str, own: Mapping[str, Any]) -> TrainConfig:
    """Return `config` with this combination; raises FeatherbackError if it is not supported."""
    options = methods.OPTIONS.among(method, own)
    form: dict[str, Any] = {} if train == "lora" else dict.fromkeys(USUAL) | {"adapter_options": {}, "dequantize": True}
    return replace(
        config, train=train, method=method, method_options=options, optimizer=optimizer, optimizer_options={},
        learning_rate=None, **form,
    )  # fmt: skip


def _shape_job(shape: ModelConfig, config: TrainConfig) -> Job:
    """Return the job of training a model of this shape, with an adapter in every layer.

    A frozen model has 4-bit weights.
    """
    kind = TensorType.Q4_0 if config.whole is None else config.whole.kind
    form: dict[str, Any] = {"layers": None, "targets": None if config.whole else ("all",)}
    return Job.of_shape(shape, kind, **job_options(replace(config, **form)))


def largest_models(
    config: TrainConfig, baseline: Baseline, own: Mapping[str, Any]
) -> Iterator[tuple[int, dict[str, str | None]]]:
    """Yield (memory in bytes, {method: largest 4-bit Qwen2.5 shape that fits, or None}), from small to large memory.

    The adapters have all layers and all projections as targets.
    """
    memories = (config.budget,) if config.budget else MEMORIES
    least = {name: _smallest_rss(chosen, baseline) for name, chosen in _with_each_method(config, own)}
    for memory in memories:
        yield (
            memory,
            {
                name: next((size for size, rss in reversed(sizes) if rss <= memory), None)
                for name, sizes in least.items()
            },
        )


def _with_each_method(config: TrainConfig, own: Mapping[str, Any]) -> Iterator[tuple[str, TrainConfig]]:
    """Yield (method, `config` with this method and its options among `own`)."""
    for name in methods.METHODS.names:
        if config.train == "lora" or methods.METHODS[name].can_train_weights:
            yield name, replace(config, method=name, method_options=methods.OPTIONS.among(name, own))


def least_memory(config: TrainConfig, model: Model, baseline: Baseline) -> int:
    """Return the smallest --memory, in bytes, with which `config` can train this model."""
    return planner.least_budget(planner.smallest(job_of(config, model), baseline, _UNTIMED).rss)


def _smallest_rss(config: TrainConfig, baseline: Baseline) -> list[tuple[str, int]]:
    """Return (size, smallest peak RSS in bytes) of every Qwen2.5 shape."""
    return [
        (size, planner.smallest(_shape_job(shape, config), baseline, _UNTIMED).rss) for size, shape in QWEN2_5.items()
    ]
