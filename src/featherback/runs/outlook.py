"""What training would cost under each method, and the largest model that fits in a memory size. Nothing is trained.

arXiv 2511.11362 asks the second of zeroth-order and first-order training.
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
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.yardstick import QWEN2_5
from featherback.models.model import Model
from featherback.runs.choose import Computes, job_of, job_options
from featherback.runs.config import TrainConfig
from featherback.runs.panels.adapter import USUAL
from featherback.runs.panels.whole import TRAINED

MEMORIES = tuple(amount * MB for amount in (64, 128, 256, 512, 1000, 2000, 4000))


_UNTIMED = Machine(product_rate=1.0, attention_rate=1.0, copy_rate=1.0)  # where only memory is asked for


@dataclass(frozen=True)
class MethodOutlook:
    """One method: its least resident peak, the least --memory to name, the plan (None: it does not fit)."""

    method: str
    least_rss_mb: float
    least_memory_mb: int
    plan: Plan | None


def outlook(config: TrainConfig, model: Model, baseline: Baseline, own: Mapping[str, Any]) -> list[MethodOutlook]:
    """Every method under the options and the budget of `config`, and those of the options `own` that it has."""
    computes, found = Computes.of(config, model), []
    for name, chosen in _of_methods(config, own):
        job = job_of(chosen, model)
        least = planner.smallest(job, baseline, computes.least)
        try:
            plan = computes.plan(job, config.memory, baseline)
        except FeatherbackError:
            plan = None
        found.append(MethodOutlook(name, least.rss / MB, planner.least_budget(least.rss) // MB, plan))
    return found


@dataclass(frozen=True)
class Combination:
    """What is trained, how its gradient is found and what changes it, with what that takes."""

    train: str
    method: str
    optimizer: str
    least_memory_mb: int
    disk_mb: float
    plan: Plan | None  # within the budget; None: it does not fit
    largest: str | None  # of the family of `largest_models`, within the budget or the memory there is


def combinations(
    config: TrainConfig, model: Model, baseline: Baseline, own: Mapping[str, Any]
) -> Iterator[Combination]:
    """Every method with every optimiser that goes with it, for adapters and for whole models, one by one."""
    computes = Computes.of(config, model)
    limit = min(each for each in (config.budget, computes.least.memory, math.inf) if each is not None)
    for train in TRAINED:
        for name in methods.METHODS.names:
            shared: dict[object, dict[Any, Any]] = {}  # dry runs do not depend on an adapter's optimiser
            for optimizer in optim.RULES.names:
                try:
                    chosen = _trained_by(config, train, name, optimizer, own).for_model(model)
                except FeatherbackError:  # they do not go together
                    continue
                jobs = [job_of(chosen, model), *(_shaped(shape, chosen) for shape in QWEN2_5.values())]
                if train == "lora":
                    jobs = [replace(job, accounts=shared.setdefault(i, {})) for i, job in enumerate(jobs)]
                yield _combination(chosen, jobs, limit, baseline, computes)


def _combination(
    config: TrainConfig, jobs: Sequence[Job], limit: float, baseline: Baseline, computes: Computes
) -> Combination:
    """`jobs`: the model's, then those of the family."""
    job, *family = jobs
    least = planner.smallest(job, baseline, computes.least).rss
    try:
        plan = computes.plan(job, config.memory, baseline)
    except FeatherbackError:
        plan = None
    budget, largest = planner.least_budget(least) // MB, None
    for size, other in zip(QWEN2_5, family):  # from the smallest: large ones take long to account for
        if planner.smallest(other, baseline, _UNTIMED).rss > limit:
            break
        largest = size
    return Combination(config.train, config.method, config.optimizer, budget, job.disk_bytes / MB, plan, largest)


def _trained_by(config: TrainConfig, train: str, method: str, optimizer: str, own: Mapping[str, Any]) -> TrainConfig:
    """`config` with these; FeatherbackError if they do not go together."""
    options = methods.OPTIONS.among(method, own)
    form: dict[str, Any] = {} if train == "lora" else dict.fromkeys(USUAL) | {"dequantize": True}
    return replace(
        config, train=train, method=method, method_options=options, optimizer=optimizer, optimizer_options={},
        learning_rate=None, **form,
    )  # fmt: skip


def _shaped(shape: ModelConfig, config: TrainConfig) -> Job:
    """The job of training a model of this shape, in 4 bits if it stays as it is."""
    kind = TensorType.Q4_0 if config.whole is None else config.whole.kind
    return Job.of_shape(shape, kind, **job_options(replace(config, targets=None if config.whole else ("all",))))


def largest_models(
    config: TrainConfig, baseline: Baseline, own: Mapping[str, Any]
) -> Iterator[tuple[int, dict[str, str | None]]]:
    """(memory in bytes, {method: largest 4-bit Qwen2.5 shape that fits, or None}), from small to large memories.

    All projections of these shapes are adapted.
    """
    memories = (config.budget,) if config.budget else MEMORIES
    least = {name: _least(chosen, baseline) for name, chosen in _of_methods(config, own)}
    for memory in memories:
        yield (
            memory,
            {
                name: next((size for size, rss in reversed(sizes) if rss <= memory), None)
                for name, sizes in least.items()
            },
        )


def _of_methods(config: TrainConfig, own: Mapping[str, Any]) -> Iterator[tuple[str, TrainConfig]]:
    """(method, `config` with it and those of the options `own` that it has)."""
    for name in methods.METHODS.names:
        if config.train == "lora" or methods.METHODS[name].can_train_weights:
            yield name, replace(config, method=name, method_options=methods.OPTIONS.among(name, own))


def least_memory(config: TrainConfig, model: Model, baseline: Baseline) -> int:
    """The least --memory that the options of `config` train this model in, in bytes."""
    return planner.least_budget(planner.smallest(job_of(config, model), baseline, _UNTIMED).rss)


def _least(config: TrainConfig, baseline: Baseline) -> list[tuple[str, int]]:
    """(size, least resident bytes) of every model of the family."""
    return [(size, planner.smallest(_shaped(shape, config), baseline, _UNTIMED).rss) for size, shape in QWEN2_5.items()]
