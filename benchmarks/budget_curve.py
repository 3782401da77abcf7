"""Memory buys time: the step time under growing budgets, as a table and a picture."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.pictures import Panel, layers_figure, svg
from benchmarks.speed import Say, Setting
from benchmarks.steps import fastest, job_of, run_step
from benchmarks.synthetic import made
from featherback.engine.host.machine import Machine
from featherback.methods.memory import planner
from featherback.methods.memory.plan import Plan
from featherback.runs.worker_process import worker_baseline

MB = 10**6
LENGTHS = (256, 1024)
POINTS = 7  # budgets, from the least to where more changes nothing


@dataclass(frozen=True)
class Point:
    """One budget: the plan under it, its prediction, and what was measured."""

    budget_mb: int
    plan: Plan
    seconds: float  # per step, the least of all rounds
    footprint_mb: float
    rss_mb: float


def run(names: list[str], cache: Path, steps: int, quick: bool, keep: bool, say: Say) -> dict[str, Any]:
    """The curves of the models called `names`; with `quick`, the first's alone, at three budgets."""
    chosen = [Setting(name, tokens) for tokens in LENGTHS for name in names]
    chosen = chosen[:1] if quick else chosen
    points, rounds = (3, 1) if quick else (POINTS, 2)
    with ExitStack() as stack:
        named = dict.fromkeys(setting.model for setting in chosen)
        paths = {name: stack.enter_context(made(name, cache, keep)) for name in named}
        found = {
            setting: _curve(setting, paths[setting.model], cache, steps, points, rounds, say) for setting in chosen
        }
    return {
        "curves": [
            {**asdict(setting), "points": [asdict(point) for point in curve]} for setting, curve in found.items()
        ],
        "markdown": "\n\n".join(_markdown(setting, curve) for setting, curve in found.items()),
        "plots": {"curve": _plot(found)},
    }


def _curve(setting: Setting, path: Path, cache: Path, steps: int, points: int, rounds: int, say: Say) -> list[Point]:
    """Rounds over all budgets in turn, so that a slow minute of the machine meets all of them."""
    job, tokens = job_of(path, setting.tokens), setting.tokens
    machine, baseline = Machine.measure(job.config, tokens, job.compute), worker_baseline()
    least = planner.least_budget(planner.smallest(job, baseline, machine).rss)
    most = planner.choose(job, 100 * least, baseline, machine).predicted_rss_mb or 0
    ratio = (most * MB / least) ** (1 / (points - 1))
    budgets = [-(-int(least * ratio**i) // MB) for i in range(points)]
    plans = [planner.choose(job, budget * MB, baseline, machine) for budget in budgets]
    results: list[list[dict[str, Any]]] = [[] for _ in plans]
    for number in range(rounds):
        for budget, plan, runs in zip(budgets, plans, results):
            runs.append(run_step(path, plan, cache, tokens=tokens, steps=steps))
            seconds = fastest(runs[-1]["seconds"])
            say(f"{setting.model}, {tokens} tokens, {budget} MB, round {number + 1}: {seconds:.3f} s per step")
    return [
        Point(
            budget,
            plan,
            min(fastest(run["seconds"]) for run in runs),
            max(run["footprint_mb"] for run in runs),
            max(run["rss_mb"] for run in runs),
        )
        for budget, plan, runs in zip(budgets, plans, results)
    ]


def _markdown(setting: Setting, curve: list[Point]) -> str:
    head = ["--memory, MB", "kept", "weights", "footprint", "RSS", "s per step", "of the least budget's", "predicted"]
    first = curve[0]
    lines = []
    for point in curve:
        kept = ", ".join(f"{name} {layers}" for name, layers in point.plan.keep.items() if name != "lse")
        relative = point.seconds / first.seconds
        predicted = (point.plan.predicted_step_seconds or 0) / (first.plan.predicted_step_seconds or 1)
        lines.append(
            [str(point.budget_mb), kept or "nothing", point.plan.weights.replace("_", " ")]
            + [f"{v:.0f}" for v in (point.footprint_mb, point.rss_mb)]
            + [f"{point.seconds:.2f}", f"{relative:.2f}", f"{predicted:.2f}"]
        )
    return f"{setting.model}, {setting.tokens} tokens (kept: intermediate and layers):\n\n{table(head, lines)}"


def _plot(found: dict[Setting, list[Point]]) -> str:
    """Relative step times, budgets in equal ratios from the least to the most that is of use."""

    def label(setting: Setting) -> str:
        return f"{setting.model}, {setting.tokens}"

    measured = {label(s): [p.seconds / curve[0].seconds for p in curve] for s, curve in found.items()}
    budgets = {label(s): [float(p.budget_mb) for p in curve] for s, curve in found.items()}
    ticks = (0.4, 0.6, 0.8, 1.0)
    figure = layers_figure(
        "Memory buys time",
        [Panel("step time, of the least budget's", measured, ticks), Panel("--memory, MB", budgets)],
        "budget, from the least to the most that is of use",
    )
    return svg(figure)
