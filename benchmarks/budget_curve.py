"""Memory buys time: the time of a step under growing budgets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import watch
from benchmarks.steps import fastest, job_of, run_step
from featherback.engine.host.machine import Machine
from featherback.methods.memory import planner
from featherback.methods.memory.plan import Plan
from featherback.runs.worker_process import worker_baseline

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row

MB = 10**6
MODEL, TOKENS, STEPS = "qwen2.5-0.5b", 256, 5
POINTS = 5  # budgets in equal ratios, from the least to where more changes nothing


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """A row for each budget, the least first. The budgets are found when the first row is measured."""
    found: list[tuple[int, Plan]] = []

    def row(index: int) -> Row:
        if not found:
            found.extend(budgets(place.synthetic(MODEL), place.tokens(TOKENS)))
        return _row(*found[index], place)

    return {f"0.5b-point{index + 1}": partial(row, index) for index in range(POINTS)}


def budgets(path: Path, tokens: int) -> list[tuple[int, Plan]]:
    """Budgets in MB and the plan that each one buys."""
    job = job_of(path, tokens)
    machine, baseline = Machine.measure(job.config, tokens, job.compute), worker_baseline()
    least = planner.least_budget(planner.smallest(job, baseline, machine).rss)
    most = planner.choose(job, 100 * least, baseline, machine).predicted_rss_mb or 0
    ratio = (most * MB / least) ** (1 / (POINTS - 1))
    sizes = [-(-int(least * ratio**i) // MB) for i in range(POINTS)]
    return [(size, planner.choose(job, size * MB, baseline, machine)) for size in sizes]


def _row(budget: int, plan: Plan, place: Place) -> Row:
    tokens, steps = place.tokens(TOKENS), place.steps(STEPS)
    found: dict[str, Any] = run_step(
        place.synthetic(MODEL), plan, place.folder, tokens=tokens, steps=steps, interval=watch.RARELY
    )
    return {
        "model": MODEL,
        "tokens": TOKENS,
        "budget_mb": budget,
        "kept": {name: layers for name, layers in plan.keep.items() if name != "lse"},
        "weights": plan.weights.replace("_", " "),
        "footprint_mb": round(found["footprint_mb"], 1),
        "rss_mb": round(found["rss_mb"], 1),
        "step_s": round(fastest(found["seconds"]), 3),
        "predicted_step_s": round(plan.predicted_step_seconds or 0, 3),
    }
