"""The choice of the plan under which a run lays out its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from featherback import kernels, methods, optim
from featherback.host.machine import Baseline, Machine, is_ram_disk, product_rates
from featherback.memory import planner
from featherback.memory.job import Job
from featherback.memory.plan import Plan
from featherback.models.model import Model
from featherback.training.config import AUTO, COMPUTE, TrainConfig

AS_FAST = 0.95
"""--compute auto prefers the more exact of two if it has this share of the other's rate."""


def job_of(config: TrainConfig, model: Model) -> Job:
    """What the planner needs to know of a run."""
    return Job.of(model, **job_options(config))


def job_options(config: TrainConfig) -> dict[str, Any]:
    """The part of a job that is not the model's."""
    form = config.form
    return {
        "method": methods.METHODS[config.method],
        "options": methods.OPTIONS.make(config.method, config.method_options),
        "rank": form.rank,
        "targets": form.targets if config.whole is None else (),
        "whole": config.whole,
        "dropout": config.lora_dropout,
        "dora": form.dora,
        "tokens": config.batch_size * config.sequence,
        "sequence": config.sequence,
        "compute": COMPUTE[0] if config.compute == AUTO else config.compute,  # left open: that needs least
        "rule": optim.OPTIONS.make(config.optimizer, config.optimizer_options),
        "threads": config.threads or kernels.default_threads(),
        "files": not (config.out and is_ram_disk(Path(config.out))),
    }


def longest_fitting(
    config: TrainConfig, model: Model, baseline: Baseline, least: int, most: int
) -> tuple[int, int]:
    """The longest sequence, of `least` to `most` tokens, that a run has the memory for, and the budget that `most`
    needs, in bytes. `least` is known to fit."""
    kernels.set_threads(config.threads or kernels.default_threads())
    machine = _machine(config, model, tokens=config.batch_size * most)

    def job(length: int) -> Job:
        return job_of(replace(config, seq_len=length), model)

    low, high = least, most + 1
    while high - low > 1:
        length = (low + high) // 2 if high <= most else most  # most often all of it fits
        if planner.fits(job(length), config.memory, baseline, machine):
            low = length
        else:
            high = length
    needed = planner.least_budget(planner.smallest(job(most), baseline, machine).rss) if low < most else 0
    return low, needed


def preferred(config: TrainConfig, model: Model) -> tuple[TrainConfig, dict[str, float]]:
    """These options with a compute that is not `AUTO`, and if it was, the rates (GFLOP/s) that decided."""
    if config.compute != AUTO:
        return config, {}
    measured = product_rates(model.config, config.batch_size * config.sequence)
    rates = {compute: round(rate / 1e9, 1) for compute, rate in measured.items()}
    return replace(config, compute=best(rates)), rates


def best(rates: Mapping[str, float]) -> str:
    """The most exact compute of those about as fast as the fastest."""
    enough = AS_FAST * max(rates.values())
    return next(compute for compute in reversed(COMPUTE) if rates[compute] >= enough)


def _machine(config: TrainConfig, model: Model, tokens: int) -> Machine:
    return Machine.measure(model.config, tokens, job_options(config)["compute"])


def plan_for(config: TrainConfig, model: Model, baseline: Callable[[], Baseline]) -> Plan:
    """The plan of a run in a process that initially holds what `baseline` finds.

    It is asked after the kernels were timed, which leaves some of their code and buffers in this process. With
    --compute auto the best one gives way to the one that needs least memory if it does not fit.
    FeatherbackError if the budget is too small.
    """
    kernels.set_threads(config.threads or kernels.default_threads())
    tokens = config.batch_size * config.sequence
    chosen, rates = preferred(config, model)
    machine = _machine(chosen, model, tokens)
    held, job = baseline(), job_of(chosen, model)
    if rates and not planner.fits(job, config.memory, held, machine):
        machine, job = _machine(config, model, tokens), job_of(config, model)
    return replace(planner.choose(job, config.memory, held, machine), rates=rates)
