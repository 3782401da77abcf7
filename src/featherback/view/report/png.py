"""Draw the report's charts as one PNG, for papers and slides. Needs matplotlib (the `png` extra)."""

from __future__ import annotations

from pathlib import Path

from featherback.core.files import atomic_file
from featherback.core.sizes import MB, shown_mb
from featherback.errors import FeatherbackError
from featherback.runs.run_directory import RunDirectory
from featherback.view.report.curves import Curves

PNG = "report.png"


def write_png(run: RunDirectory) -> Path:
    """Write report.png into the run's directory; raises FeatherbackError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise FeatherbackError(
            "Cannot draw a PNG: matplotlib is not installed. Run: pip install 'featherback[png]', or use loss.svg."
        ) from None
    run.make_private()
    curves, budget = Curves(run), run.config.budget
    figure = Figure(figsize=(11, 7), layout="constrained", dpi=144)
    (loss, memory), (speed, rate) = figure.subplots(2, 2)
    figure.suptitle(run.path.absolute().name)
    smoothed = curves.span > 1
    loss.plot(*_axes(curves.losses.extremes), color="#8ab1e0" if smoothed else "#0b5fc0", lw=1, label="each step")
    if smoothed:
        average = f"moving average of {curves.span} steps"
        loss.plot(*_axes(curves.averages.points), color="#0b5fc0", lw=2, label=average)
    if curves.held_out:
        loss.plot(*_axes(curves.held_out), color="#c2510c", marker="o", ms=4, label="held-out")
    memory.plot(*_axes(curves.rss.points), color="#0b5fc0", label="resident")
    memory.plot(*_axes(curves.footprint.points), color="#5c8a2e", label="footprint")
    if budget is not None:
        memory.axhline(budget / MB, color="#c0262d", ls="--", label=f"budget {shown_mb(budget)}")
    speed.plot(*_axes(curves.speed.points), color="#0b5fc0")
    rate.plot(*_axes(curves.rates.points), color="#0b5fc0")
    titles = ("Loss, nats per token", "Memory, MB", "Speed, tokens per second", "Learning rate")
    for axes, title in zip((loss, memory, speed, rate), titles):
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if axes is not loss:
            axes.set_ylim(bottom=0)
    for axes in (loss, memory):
        axes.legend(frameon=False, fontsize=9)
    path = run.path / PNG
    with atomic_file(path) as file:
        figure.savefig(file, format="png")
    return path


def _axes(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
