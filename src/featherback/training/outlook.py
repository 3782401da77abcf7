"""What training would cost under each method, and the largest model that fits in a memory size. Nothing is trained.

arXiv 2511.11362 asks the second of zeroth-order and first-order training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from featherback import methods
from featherback.architecture.yardstick import QWEN2_5
from featherback.errors import FeatherbackError
from featherback.host.machine import Baseline, Machine
from featherback.memory import planner
from featherback.memory.job import Job
from featherback.memory.plan import Plan
from featherback.memory.planner import MB
from featherback.models.model import Model
from featherback.training.choose import job_of, job_options
from featherback.training.config import TrainConfig
from featherback.weights.types import TensorType

MEMORIES = (64 * 10**6, 128 * 10**6, 256 * 10**6, 512 * 10**6, 1 * 10**9, 2 * 10**9, 4 * 10**9)


@dataclass(frozen=True)
class MethodOutlook:
    """One method: its least resident peak, the least --memory to name, the plan (None: it does not fit)."""

    method: str
    least_rss_mb: float
    least_memory_mb: int
    plan: Plan | None


def outlook(
    config: TrainConfig, model: Model, baseline: Baseline, own: Mapping[str, Any]
) -> list[MethodOutlook]:
    """Every method under the options and the budget of `config`, and those of the options `own` that it has."""
    machine = Machine.measure(model.config, config.batch_size * config.seq_len, config.compute)
    found = []
    for name, chosen in _of_methods(config, own):
        job = job_of(chosen, model)
        least = planner.smallest(job, baseline, machine)
        try:
            plan = planner.choose(job, config.memory, baseline, machine)
        except FeatherbackError:
            plan = None
        found.append(MethodOutlook(name, least.rss / MB, planner.least_budget(least.rss) // MB, plan))
    return found


def largest_models(
    config: TrainConfig, baseline: Baseline, own: Mapping[str, Any]
) -> Iterator[tuple[int, dict[str, str | None]]]:
    """(memory in bytes, {method: largest 4-bit Qwen2.5 shape that fits, or None}), from small to large memories.

    All projections of these shapes are adapted.
    """
    config = replace(config, targets=("all",))
    machine = Machine(product_rate=1.0, attention_rate=1.0, copy_rate=1.0)  # only memory is asked for
    memories = (config.memory,) if config.memory else MEMORIES
    least = {name: _least(chosen, baseline, machine) for name, chosen in _of_methods(config, own)}
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
        yield name, replace(config, method=name, method_options=methods.OPTIONS.among(name, own))


def _least(config: TrainConfig, baseline: Baseline, machine: Machine) -> list[tuple[str, int]]:
    """(size, least resident bytes) of every model of the family."""
    return [
        (
            size,
            planner.smallest(
                Job.of_shape(shape, TensorType.Q4_0, **job_options(config)), baseline, machine
            ).rss,
        )
        for size, shape in QWEN2_5.items()
    ]
