"""The choice of the plan under which a run lays out its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from featherback import kernels, methods, optim
from featherback.host.machine import Baseline, Machine, is_ram_disk
from featherback.memory import planner
from featherback.memory.job import Job
from featherback.memory.plan import Plan
from featherback.models.model import Model
from featherback.training.config import TrainConfig


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
        "compute": config.compute,
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
    machine = Machine.measure(model.config, config.batch_size * most, config.compute)

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


def plan_for(config: TrainConfig, model: Model, baseline: Callable[[], Baseline]) -> Plan:
    """The plan of a run in a process that initially holds what `baseline` finds.

    It is asked after the kernels were timed, which leaves some of their code and buffers in this process.
    FeatherbackError if the budget is too small.
    """
    kernels.set_threads(config.threads or kernels.default_threads())
    machine = Machine.measure(model.config, config.batch_size * config.sequence, config.compute)
    return planner.choose(job_of(config, model), config.memory, baseline(), machine)
