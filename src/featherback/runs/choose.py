"""The choice of the plan under which a run lays out its memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from featherback import methods
from featherback.core.sizes import MB
from featherback.engine import kernels
from featherback.engine.formats.types import TensorType
from featherback.engine.host import remembered
from featherback.engine.host.machine import (
    PRODUCT_OUTPUTS,
    PRODUCT_ROWS,
    Baseline,
    Machine,
    is_ram_disk,
    memory_limit,
    product_rates,
)
from featherback.engine.host.rates import nominal
from featherback.methods.memory import planner
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import Plan
from featherback.models.model import Model
from featherback.runs.config import TrainConfig
from featherback.runs.panels.run import AUTO, COMPUTE

AS_FAST = 0.95
"""--compute auto prefers the more exact of two if it has this share of the other's rate."""
MOST_OF_FREE = 0.5
"""Of the memory that is free, what a run takes at most where no budget is named."""


def job_of(config: TrainConfig, model: Model) -> Job:
    """What the planner needs to know of a run."""
    return Job.of(model, **job_options(config))


def job_options(config: TrainConfig) -> dict[str, Any]:
    """The part of a job that is not the model's."""
    return {
        "method": methods.METHODS[config.method],
        "options": methods.OPTIONS.make(config.method, config.method_options),
        "form": config.form if config.whole is None else None,
        "objective": config.criterion,
        "whole": config.whole,
        "tokens": config.batching.full,
        "sequence": config.sequence,
        "compute": COMPUTE[0] if config.compute == AUTO else config.compute,  # left open: that needs least
        "rule": config.rule,
        "threads": config.threads or kernels.default_threads(),
        "files": not (config.out and is_ram_disk(Path(config.out))),
    }


def longest_fitting(config: TrainConfig, model: Model, baseline: Baseline, least: int, most: int) -> tuple[int, int]:
    """The longest sequence, of `least` to `most` tokens, that a run has the memory for, and the budget that `most`
    needs, in bytes. `least` is known to fit."""

    def job(length: int) -> Job:
        return job_of(replace(config, seq_len=length), model)

    asked = job(least)
    machine = nominal(asked.compute, asked.threads, memory_limit())

    low, high = least, most + 1
    while high - low > 1:
        length = (low + high) // 2 if high <= most else most  # most often all of it fits
        if planner.fits(job(length), config.budget, baseline, machine):
            low = length
        else:
            high = length
    needed = planner.least_budget(planner.smallest(job(most), baseline, machine).rss) if low < most else 0
    return low, needed


def best(rates: Mapping[str, float]) -> str:
    """The most exact compute of those about as fast as the fastest."""
    enough = AS_FAST * max(rates.values())
    return next(compute for compute in reversed(COMPUTE) if rates[compute] >= enough)


@dataclass(frozen=True)
class Computes:
    """What a run may compute in, the best first and the one that needs least memory last, with the machine's rates.

    `rates` (GFLOP/s of products): what the choice was made by, if it was left open.
    """

    machines: Mapping[str, Machine]
    rates: Mapping[str, float]

    @classmethod
    def of(cls, config: TrainConfig, model: Model) -> Computes:
        """What `config` names; if it is `AUTO`, what a short measurement finds."""
        tokens = config.batching.full
        rates, names = {}, [config.compute]
        if config.compute == AUTO:
            rates = measured_rates(config, model)
            names = [best(rates), COMPUTE[0]]
        return cls({name: Machine.measure(model.config, tokens, name) for name in dict.fromkeys(names)}, rates)

    @property
    def least(self) -> Machine:
        """The rates of the one that needs least memory."""
        return list(self.machines.values())[-1]

    def plan(self, job: Job, budget: int | str | None, baseline: Baseline) -> Plan:
        """As `planner.choose`, with the first compute that fits, of a job as `job_of` makes it.

        `budget`: bytes, or a word of `Plan.budget`. The plan is for all the memory of the machine, so that it is the
        same at any moment; unless that much is not free now, which the plan then says.
        """
        if isinstance(budget, str):
            budget = self._plan(job, None, baseline).budget(budget)
        plan, free = self._plan(job, budget, baseline), memory_limit()
        if self._has_room(job, plan, budget, baseline, free):
            return plan
        now = Computes({name: replace(each, memory=free) for name, each in self.machines.items()}, self.rates)
        return replace(now._plan(job, budget, baseline), free_mb=free // MB)

    def _has_room(self, job: Job, plan: Plan, budget: int | None, baseline: Baseline, free: int) -> bool:
        """Whether so much is free as a plan takes, and to spare where no budget is named; and in the page cache, where
        the machine has that."""
        usual = self.machines[plan.compute]
        job = replace(job, compute=plan.compute)
        here, now = (
            planner.predict(job, plan, baseline, replace(usual, memory=memory)) for memory in (usual.memory, free)
        )
        share = MOST_OF_FREE if budget is None else 1
        return now.rss <= share * free and (here.crowded or not now.crowded)

    def _plan(self, job: Job, budget: int | None, baseline: Baseline) -> Plan:
        """As `plan`, within the memory that `machines` have."""
        (first, fast), *others = self.machines.items()
        if not others:
            return replace(planner.choose(job, budget, baseline, fast), rates=self.rates)
        better = replace(job, compute=first)
        if planner.fits(better, budget, baseline, fast):
            plan = planner.choose(better, budget, baseline, fast)
            small = planner.choose(job, None, baseline, self.least)  # what the least memory would give
            plan = replace(plan, least_mb=small.least_mb, least_step_seconds=small.least_step_seconds)
        else:
            plan = planner.choose(job, budget, baseline, self.least)
            if planner.fits(better, None, baseline, fast):  # with more memory it would be this one
                large = planner.choose(better, None, baseline, fast)
                plan = replace(plan, fastest_mb=large.fastest_mb, fastest_step_seconds=large.fastest_step_seconds)
        return replace(plan, rates=self.rates)


def measured_rates(config: TrainConfig, model: Model) -> dict[str, float]:
    """compute -> GFLOP/s of a product with such weights as most of those that are trained or adapted.

    They are remembered: --compute auto then takes the same in every run.
    """
    kind = TensorType.Q4_0 if config.whole is None else config.whole.kind  # quantised types rank them alike
    rows = min(config.batching.full, PRODUCT_ROWS)
    shape = [rows, model.config.hidden_size, min(model.config.intermediate_size, PRODUCT_OUTPUTS)]
    subject = remembered.about(products=shape, type=kind.name, threads=kernels.threads())
    if (known := _rates_from(remembered.recall(subject))) is not None:
        return known
    found = product_rates(model.config, rows, kind)
    measured = {compute: round(rate / 1e9, 1) for compute, rate in found.items()}
    return dict(remembered.update(subject, lambda known: _rates_from(known) or measured))


def _rates_from(values: Any) -> dict[str, float] | None:
    """Rates that were remembered; None if these are none."""
    if not isinstance(values, dict) or values.keys() != set(COMPUTE):
        return None
    sound = all(isinstance(rate, float) and math.isfinite(rate) and rate > 0 for rate in values.values())
    return {compute: values[compute] for compute in COMPUTE} if sound else None


def plan_for(config: TrainConfig, model: Model, baseline: Callable[[], Baseline]) -> Plan:
    """The plan of a run in a process that initially holds what `baseline` finds.

    It is asked after the kernels were timed, which leaves some of their code and buffers in this process.
    FeatherbackError if the budget is too small.
    """
    kernels.set_threads(config.threads or kernels.default_threads())
    computes = Computes.of(config, model)
    return computes.plan(job_of(config, model), config.memory, baseline())
