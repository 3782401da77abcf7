"""MeSP with h stored and recomputed, all else equal: the paper's Table 5."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from featherback import kernels, models
from featherback.bench import watch
from featherback.bench.training_run import Measured, random_sequences
from featherback.host.machine import Machine
from featherback.memory import planner
from featherback.memory.job import Job
from featherback.memory.plan import Plan
from featherback.methods import METHODS
from featherback.optim.rules.sgd import SGD
from featherback.training.worker_process import worker_baseline, worker_environment


def measure_kept_h(model: Path, keep_h: bool, folder: Path, tokens: int = 256, steps: int = 2) -> Measured:
    """The leanest plan there is, with h kept or not."""
    opened = models.load(model)
    job = Job.of(
        opened,
        method=METHODS["mesp"],
        tokens=tokens,
        sequence=tokens,
        rule=SGD(),
        threads=kernels.default_threads(),
    )
    baseline, machine = worker_baseline(), Machine.measure(opened.config, tokens, "bf16")
    plan = replace(planner.smallest(job, baseline, machine).plan, keep_h=keep_h)
    result = run_step(model, plan, folder, steps=steps, optimizer="sgd", tokens=tokens)
    return Measured(
        method="mesp",
        optimizer="sgd",
        tokens=tokens,
        rank=8,
        budget_mb=None,
        footprint_mb=result["footprint_mb"],
        rss_mb=result["rss_mb"],
        outside_footprint_mb=result["outside_footprint_mb"],
        outside_rss_mb=result["outside_rss_mb"],
        predicted_rss_mb=planner.predict(job, plan, baseline, machine).rss / 1e6,
        checkpoints=plan.checkpoints,
        states=plan.states,
        step_seconds=min(result["seconds"]),
        losses=tuple(result["losses"]),
    )


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
    """`bench.step` in a fresh process: what it says, and its peaks as seen from outside."""
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
        command = [sys.executable, "-m", "featherback.bench.step", json.dumps(request)]
        outcome = watch.run(command, worker_environment() | dict(environment or {}), interval)
    found: dict[str, Any] = json.loads(outcome.output)
    return found | {"outside_footprint_mb": outcome.footprint_mb, "outside_rss_mb": outcome.rss_mb}
