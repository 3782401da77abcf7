"""What a run's pictures are drawn from: its metrics, read line by line."""

from __future__ import annotations

from featherback.runs.run_directory import RunDirectory, is_number
from featherback.runs.totals import Average, Point, Series, span_of

_FEWER = 720
"""Points of the curves that are drawn small, or are smooth."""


class Curves:
    """The series of a run. `span`: steps of the loss's moving average. `before`: the held-out loss before training, if
    it was measured. `best`: the step and held-out loss of the adapter that is kept."""

    def __init__(self, run: RunDirectory) -> None:
        self.steps = sum(1 for _ in run.metrics())
        self.span = span_of(self.steps)
        average = Average(self.span)
        self.losses, self.averages = Series(), Series(_FEWER)
        self.rates, self.footprint, self.rss, self.speed = (Series(_FEWER) for _ in range(4))
        for line in run.metrics():
            step = line["step"]
            self.losses.add(step, line["loss"])
            self.averages.add(step, average.add(line["loss"]))
            self.speed.add(step, line["tokens"] / max(line["seconds"], 1e-9))
            for series, name in ((self.rates, "lr"), (self.footprint, "footprint_mb"), (self.rss, "rss_mb")):
                if is_number(value := line.get(name)):  # another could not be drawn
                    series.add(step, value)
        held_out = Series(_FEWER)
        self.before: float | None = None
        self.best: Point | None = None
        for evaluation in run.record.get("evaluations", []):
            step, loss = evaluation["step"], evaluation["loss"]
            held_out.add(step, loss)
            if not step:
                self.before = loss
            elif self.best is None or loss < self.best[1]:
                self.best = step, loss
        self.held_out: list[Point] = held_out.points
