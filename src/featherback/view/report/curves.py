"""The series that a run's charts show, read line by line from its metrics."""

from __future__ import annotations

from featherback.runs.run_directory import RunDirectory, is_number
from featherback.runs.totals import Average, Pace, Point, Series, span_of

MEASURES = ("chosen_reward", "rejected_reward", "accuracy", "macro_f1", "next_token_loss", "divergence")
ROLLOUTS = ("reward", "answer_length", "repetition", "entropy")
"""Measures of the model's own answers."""
_FEWER = 720
"""Maximum number of points of a curve that is smooth or drawn small."""


class Curves:
    """The series of a run.

    `span`: steps in the loss's moving average. `before`: the held-out loss before training, or None. `best`: step and
    held-out loss of the adapter that is kept, or None. `measures`: those of preferences, labels or distillation; else
    empty.
    `pace`: the speed of the latest steps. `per_token`: the losses are nats per token.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.steps = sum(1 for _ in run.metrics())
        self.span = span_of(self.steps)
        average = Average(self.span)
        self.pace = Pace()
        self.losses, self.averages = Series(), Series(_FEWER)
        self.rates, self.footprint, self.rss, self.speed = (Series(_FEWER) for _ in range(4))
        self.measures = {name: Series(_FEWER) for name in (*MEASURES, *ROLLOUTS)}
        self.per_token = run.config.criterion.of_tokens
        for line in run.metrics():
            step = line["step"]
            self.pace.add(line["seconds"], line["tokens"])
            self.losses.add(step, line["loss"])
            self.averages.add(step, average.add(line["loss"]))
            self.speed.add(step, line["tokens"] / max(line["seconds"], 1e-9))
            for name, measure in self.measures.items():
                if is_number(value := line.get(name)):
                    measure.add(step, value)
            for series, name in ((self.rates, "lr"), (self.footprint, "footprint_mb"), (self.rss, "rss_mb")):
                if is_number(value := line.get(name)):  # anything else cannot be drawn
                    series.add(step, value)
        held_out = Series(_FEWER)
        self.before: float | None = None
        self.best: Point | None = None
        for evaluation in run.record.evaluations:
            step, loss = evaluation.step, evaluation.loss
            held_out.add(step, loss)
            if not step:
                self.before = loss
            elif self.best is None or loss < self.best[1]:
                self.best = step, loss
        self.held_out: list[Point] = held_out.points
        rewards = [(each.step, each.measures.get("reward")) for each in run.record.evaluations]
        self.held_out_rewards: list[Point] = [(step, value) for step, value in rewards if value is not None]
