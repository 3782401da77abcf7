"""Chooses a run's plan: the arithmetic it computes in and its memory layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from featherback import methods
from featherback.core.sizes import MB, whole_megabytes
from featherback.data.tokenizers.loader import tokenizer_bytes
from featherback.engine import backend, kernels
from featherback.engine.backend.protocol import Card
from featherback.engine.formats.types import TensorType
from featherback.engine.host import disk, remembered
from featherback.engine.host.machine import (
    PRODUCT_OUTPUTS,
    PRODUCT_ROWS,
    Baseline,
    Machine,
    is_ram_disk,
    memory_limit,
    memory_total,
    product_rates,
)
from featherback.engine.host.rates import nominal
from featherback.methods.memory import on_card, planner
from featherback.methods.memory.dry_run import BlankAdapter
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import Plan
from featherback.models.model import Model, matrices
from featherback.runs.config import TrainConfig
from featherback.runs.panels.run import AUTO, COMPUTE

AS_FAST = 0.95
"""--compute auto prefers the more exact arithmetic if its rate is at least this share of the fastest."""
MOST_OF_FREE = 0.5
"""Largest share of the free memory that a run without a budget may use."""


def job_of(config: TrainConfig, model: Model) -> Job:
    """Return the planner's description of a run."""
    job = Job.of(model, **job_options(config))
    if not config.writes:
        return job
    from featherback.infer.rollouts import Writing  # only where it is needed, because it takes memory

    asked = config.rollouts
    writing = Writing(
        model, BlankAdapter(job.layout, draws=False), config.sequence, asked.prompts * asked.answers,
        asked.answer_tokens, tokenizer_bytes(model.path),
    )  # fmt: skip
    return replace(job, writing=writing)


def job_options(config: TrainConfig) -> dict[str, Any]:
    """Return the fields of a job that come from the options, not from the model."""
    return {
        "method": methods.METHODS[config.method],
        "options": methods.OPTIONS.make(config.method, config.method_options),
        "form": config.form if config.whole is None else None,
        "objective": config.criterion,
        "whole": config.whole,
        "tokens": config.batching.full,
        "sequence": config.sequence,
        "compute": computes_here()[0]
        if config.compute == AUTO
        else config.compute,  # auto: the one that needs the least memory
        "rule": config.rule,
        "threads": config.threads or kernels.default_threads(),
        "files": not (config.out and is_ram_disk(Path(config.out))),
    }


def computes_here() -> Sequence[str]:
    """Return the arithmetics of the device in use: of a card the preferred one first."""
    card = backend.card()
    return COMPUTE if card is None else card.computes


def longest_fitting(config: TrainConfig, model: Model, baseline: Baseline, least: int, most: int) -> tuple[int, int]:
    """Return the longest sequence of `least` to `most` tokens that fits in memory, and the budget that `most` needs.

    The budget is in bytes; 0 if `most` fits. It is not checked that `least` fits.
    """

    def job(length: int) -> Job:
        return job_of(replace(config, seq_len=length), model)

    asked = job(least)
    card, machine = backend.card(), nominal(asked.compute, memory_limit())

    def fits(length: int) -> bool:
        if card is not None:
            return on_card.smallest(job(length), card) <= card.memory
        return planner.fits(job(length), config.budget, baseline, machine)

    low, high = least, most + 1
    while high - low > 1:
        length = (low + high) // 2 if high <= most else most  # try `most` first: it usually fits
        if fits(length):
            low = length
        else:
            high = length
    if low == most:
        return low, 0
    if card is not None:
        return low, on_card.smallest(job(most), card)
    return low, planner.least_budget(planner.smallest(job(most), baseline, machine).rss)


def best(rates: Mapping[str, float]) -> str:
    """Return the most exact compute that is about as fast as the fastest."""
    enough = AS_FAST * max(rates.values())
    return next(compute for compute in reversed(COMPUTE) if rates[compute] >= enough)


@dataclass(frozen=True)
class Computes:
    """The arithmetics that a run may use: the preferred one first, the one with the least memory last.

    `machines`: compute -> the machine's rates. `rates`: compute -> GFLOP/s of matrix products, if --compute auto
    measured them.
    """

    machines: Mapping[str, Machine]
    rates: Mapping[str, float]

    @classmethod
    def of(cls, config: TrainConfig, model: Model) -> Computes:
        """Return the compute that `config` names; for `AUTO`, choose by a short measurement."""
        tokens = config.batching.full
        rates, names = {}, list[str]()
        if config.compute == AUTO:
            rates = measured_rates(config, model)
            names = [best(rates), COMPUTE[0]]
        if not rates:
            return cls.only(config.compute, model, tokens)
        speed = _disk_rate(model)
        machines = {name: Machine.measure(model.config, tokens, name) for name in dict.fromkeys(names)}
        return cls({name: replace(machine, disk_rate=speed) for name, machine in machines.items()}, rates)

    @classmethod
    def only(cls, compute: str, model: Model, tokens: int) -> Computes:
        """Return the compute that the user named."""
        machine = Machine.measure(model.config, tokens, compute)
        return cls({compute: replace(machine, disk_rate=_disk_rate(model))}, {})

    @property
    def least(self) -> Machine:
        """The machine's rates with the compute that needs the least memory."""
        return list(self.machines.values())[-1]

    def smallest(self, job: Job, baseline: Baseline) -> int:
        """Return the bytes of the smallest plan."""
        return planner.smallest(job, baseline, self.least).rss

    @staticmethod
    def least_budget(least: int) -> int:
        """Return the least budget for a smallest plan of `least` bytes."""
        return planner.least_budget(least)

    def plan(self, job: Job, budget: int | str | None, baseline: Baseline) -> Plan:
        """Return the plan of `planner.choose` for a job of `job_of`, with the first compute that fits.

        `budget`: bytes, or a word of `Plan.budget`. The plan assumes that all of the machine's memory is free, so it is
        the same at any moment. If too little is free now, the plan is made for the free memory,
        which it records in `free_mb`.
        """
        if isinstance(budget, str):
            budget = self._plan(job, None, baseline).budget(budget)
        plan, free = self._plan(job, budget, baseline), memory_limit()
        if self._has_room(job, plan, budget, baseline, free):
            return plan
        now = Computes({name: replace(each, memory=free) for name, each in self.machines.items()}, self.rates)
        return replace(now._plan(job, budget, baseline), free_mb=free // MB)

    def _has_room(self, job: Job, plan: Plan, budget: int | None, baseline: Baseline, free: int) -> bool:
        """Return whether the free memory, `free` bytes, suffices for a plan.

        Without a budget the plan may use only half of it. If its files fit in the page cache of an idle machine, they
        must also fit in it now.
        """
        usual = self.machines[plan.compute]
        job = replace(job, compute=plan.compute)
        here, now = (
            planner.predict(job, plan, baseline, replace(usual, memory=memory)) for memory in (usual.memory, free)
        )
        share = MOST_OF_FREE if budget is None else 1
        return now.rss <= share * free and (here.exceeds_page_cache or not now.exceeds_page_cache)

    def _plan(self, job: Job, budget: int | None, baseline: Baseline) -> Plan:
        """Return the plan within the memory of `machines`."""
        (first, fast), *others = self.machines.items()
        if not others:
            return replace(planner.choose(job, budget, baseline, fast), rates=self.rates)
        better = replace(job, compute=first)
        if planner.fits(better, budget, baseline, fast):
            plan = planner.choose(better, budget, baseline, fast)
            small = planner.choose(job, None, baseline, self.least)  # the plan with the least memory, for comparison
            plan = replace(plan, least_mb=small.least_mb, least_step_seconds=small.least_step_seconds)
        else:
            plan = planner.choose(job, budget, baseline, self.least)
            if planner.fits(better, None, baseline, fast):  # with more memory this compute would be chosen
                large = planner.choose(better, None, baseline, fast)
                plan = replace(plan, fastest_mb=large.fastest_mb, fastest_step_seconds=large.fastest_step_seconds)
        return replace(plan, rates=self.rates)


@dataclass(frozen=True)
class OnCard:
    """The arithmetic of a card, in place of `Computes`. Its memory is the budget.

    Raises FeatherbackError if the card cannot read the model's weights, or has no such arithmetic.
    """

    card: Card
    compute: str
    product_rate: float

    @classmethod
    def of(cls, card: Card, model: Model, tokens: int, compute: str) -> OnCard:
        """Return the arithmetic `compute`, or for `AUTO` the card's preferred one, and time a product of the model."""
        card.check(matrix.type for matrix in matrices(model))
        compute, sizes = card.computes[0] if compute == AUTO else compute, model.config
        rows = min(tokens, PRODUCT_ROWS)
        rate = card.measured(compute, min(sizes.intermediate_size, PRODUCT_OUTPUTS), sizes.hidden_size, rows)
        return cls(card, compute, rate)

    def smallest(self, job: Job, baseline: Baseline) -> int:
        """Return the bytes of the smallest plan."""
        return on_card.smallest(replace(job, compute=self.compute), self.card)

    @staticmethod
    def least_budget(least: int) -> int:
        """Return the least --vram for a smallest plan of `least` bytes."""
        return whole_megabytes(least)

    def plan(self, job: Job, budget: int | str | None, baseline: Baseline) -> Plan:
        """Return the fastest plan that fits in the card's memory."""
        return on_card.choose(replace(job, compute=self.compute), self.card, self.product_rate)


def computes_of(config: TrainConfig, model: Model) -> Computes | OnCard:
    """Return the arithmetics that a run of these options may use, on its device."""
    card = config.use_machine()
    return Computes.of(config, model) if card is None else OnCard.of(card, model, config.batching.full, config.compute)


def computes_only(compute: str, model: Model, tokens: int) -> Computes | OnCard:
    """Return the compute that the user named, on the device in use."""
    card = backend.card()
    return Computes.only(compute, model, tokens) if card is None else OnCard.of(card, model, tokens, compute)


LARGE = 0.5
"""A model whose files take a larger share of the machine's memory may have to be read in every step."""


def _disk_rate(model: Model) -> float:
    """Return the speed of the disk that holds the model, measured if the page cache cannot hold the model as well."""
    size = sum(path.stat().st_size for path in model.files)
    if size < LARGE * memory_total():
        return math.inf
    return disk.rate_of(max(model.files, key=lambda path: path.stat().st_size)) or math.inf


def measured_rates(config: TrainConfig, model: Model) -> dict[str, float]:
    """Return compute -> GFLOP/s of a matrix product with the type of weight that is most common in the run.

    The rates are remembered on disk, so --compute auto chooses the same in every run.
    """
    kind = (
        TensorType.Q4_0 if config.whole is None else config.whole.kind
    )  # the ranking is the same for all quantised types
    rows = min(config.batching.full, PRODUCT_ROWS)
    shape = [rows, model.config.hidden_size, min(model.config.intermediate_size, PRODUCT_OUTPUTS)]
    subject = remembered.about(products=shape, type=kind.name)
    if (known := _rates_from(remembered.recall(subject))) is not None:
        return known
    found = product_rates(model.config, rows, kind)
    measured = {compute: round(rate / 1e9, 1) for compute, rate in found.items()}
    return dict(remembered.update(subject, lambda known: _rates_from(known) or measured))


def _rates_from(values: Any) -> dict[str, float] | None:
    """Return remembered rates; None if `values` are not valid rates."""
    if not isinstance(values, dict) or values.keys() != set(COMPUTE):
        return None
    sound = all(isinstance(rate, float) and math.isfinite(rate) and rate > 0 for rate in values.values())
    return {compute: values[compute] for compute in COMPUTE} if sound else None


def plan_for(config: TrainConfig, model: Model, baseline: Callable[[], Baseline]) -> Plan:
    """Return the plan of a run. Raises BudgetError if the budget is too small.

    `baseline`: the memory of the training process before it opens a model. If that is this process, it must be measured
    after the kernels were timed, because timing leaves some of their code and buffers in it.
    """
    computes = computes_of(config, model)
    return computes.plan(job_of(config, model), config.memory, baseline())
