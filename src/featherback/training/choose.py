"""The choice of the plan under which a run lays out its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from featherback import kernels, methods, optim
from featherback.host.machine import Baseline, Machine, is_ram_disk
from featherback.memory import planner
from featherback.memory.job import Job
from featherback.memory.plan import Plan
from featherback.models.model import Model
from featherback.training.config import TrainConfig

# A process that has loaded all that training loads, but no data, and run a step of a toy, reports itself.
_PROBE = """
import json
import featherback.training.worker
import featherback.training.trainer
from featherback.training.rehearsal import rehearsed_baseline
here = rehearsed_baseline()
print(json.dumps((here.footprint, here.rss)))
"""

# One BLAS thread, one heap: NumPy's BLAS is not used, and every thread of it would cost megabytes.
_LEAN = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def job_of(config: TrainConfig, model: Model) -> Job:
    """What the planner needs to know of a run."""
    return Job.of(model, **job_options(config))


def job_options(config: TrainConfig) -> dict[str, Any]:
    """The part of a job that is not the model's."""
    return {
        "method": methods.METHODS[config.method],
        "options": methods.OPTIONS.make(config.method, config.method_options),
        "rank": config.rank,
        "targets": config.targets,
        "tokens": config.batch_size * config.seq_len,
        "sequence": config.seq_len,
        "compute": config.compute,
        "optimizer_states": optim.state_arrays(config.optimizer),
        "threads": config.threads or kernels.default_threads(),
        "files": not (config.out and is_ram_disk(Path(config.out))),
    }


def plan_for(config: TrainConfig, model: Model, baseline: Callable[[], Baseline]) -> Plan:
    """The plan of a run in a process that initially holds what `baseline` finds.

    It is asked after the kernels were timed, which leaves some of their code and buffers in this process.
    FeatherbackError if the budget is too small.
    """
    kernels.set_threads(config.threads or kernels.default_threads())
    machine = Machine.measure(model.config, config.batch_size * config.seq_len, config.compute)
    return planner.choose(job_of(config, model), config.memory, baseline(), machine)


def worker_environment() -> dict[str, str]:
    """The environment of the training process."""
    return {**os.environ, **_LEAN}


def worker_baseline() -> Baseline:
    """What a fresh training process holds, measured by starting one."""
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE], env=worker_environment(), capture_output=True, text=True, check=True
    )
    return Baseline(*json.loads(probe.stdout))
