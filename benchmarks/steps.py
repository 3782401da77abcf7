"""Some training steps on random tokens in a fresh process, under a plan that is given."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import watch
from benchmarks.training_run import random_sequences
from featherback import models
from featherback.engine import kernels
from featherback.engine.host.machine import Machine
from featherback.methods import METHODS
from featherback.methods.memory import planner
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import Plan
from featherback.runs.worker_process import worker_baseline, worker_environment


def job_of(model: Path, tokens: int, method: str = "mesp", compute: str = "bf16") -> Job:
    """Batches of one sequence, on all cores, otherwise as usual."""
    return Job.of(
        models.load(model),
        method=METHODS[method],
        tokens=tokens,
        sequence=tokens,
        compute=compute,
        threads=kernels.default_threads(),
    )


def plan_of(job: Job, budget: int | None = None) -> Plan:
    """The plan that a run would choose with the kernels in use."""
    machine = Machine.measure(job.config, job.tokens, job.compute)
    return planner.choose(job, budget, worker_baseline(), machine)


def run_step(
    model: Path,
    plan: Plan,
    folder: Path,
    *,
    method: str = "mesp",
    optimizer: str = "adamw",
    rank: int = 8,
    tokens: int = 256,
    steps: int = 3,
    threads: int | None = None,
    interval: float = watch.INTERVAL,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """`benchmarks.step` in a fresh process: what it says, and its peaks as seen from outside."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-") as place:
        request = {
            "model": str(model),
            "folder": place,
            "plan": asdict(plan),
            "method": method,
            "optimizer": optimizer,
            "rank": rank,
            "threads": threads or kernels.default_threads(),
            "tokens": [row.tolist() for row in random_sequences(model, tokens, steps)],
        }
        command = [sys.executable, "-m", "benchmarks.step", json.dumps(request)]
        outcome = watch.run(command, worker_environment() | dict(environment or {}), interval)
    found: dict[str, Any] = json.loads(outcome.output)
    return found | {"outside_footprint_mb": outcome.footprint_mb, "outside_rss_mb": outcome.rss_mb}


def fastest(seconds: Sequence[float]) -> float:
    """The fastest step after the first: the least disturbed."""
    return min(seconds[1:] or seconds)
