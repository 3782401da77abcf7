"""MeSP with h stored and recomputed, all else equal: the paper's Table 5."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.steps import job_of, run_step
from benchmarks.training_run import Measured
from featherback.engine.host.machine import Machine
from featherback.methods.memory import planner
from featherback.optim.rules.sgd import SGD
from featherback.runs.worker_process import worker_baseline


def measure_kept_h(model: Path, keep_h: bool, folder: Path, tokens: int = 256, steps: int = 2) -> Measured:
    """The leanest plan there is, with h kept or not."""
    job = replace(job_of(model, tokens), rule=SGD())
    baseline, machine = worker_baseline(), Machine.measure(job.config, tokens, job.compute)
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
