"""Print a run's progress where there is no terminal: as plain lines or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import IO

from featherback.core.terminal import clean, columns_of, folded, print_error, say, several
from featherback.runs.callback import Callback
from featherback.runs.events import Begin, End, Evaluation, Event, Note, Paused, Resumed, Sample, Step
from featherback.runs.outcome import held_out_losses, held_out_measures, is_worse
from featherback.runs.run_directory import RunDirectory
from featherback.runs.totals import Average, Pace, Series, span_of

LEAST_SECONDS, MOST_SECONDS = 2.0, 900.0
"""Seconds of training between two progress lines: at first, and late in a long run."""
SHARE = 1 / 8
"""The wait for the next progress line, as a share of the time trained so far. Lines become rarer as a run goes on."""
_SPARKS = 50  # characters of the sparkline
_ANSWER = 200  # characters of an answer that are shown
REWARDS = {"chosen": "chosen_reward", "rejected": "rejected_reward"}
"""Kind of answer -> the measure of its mean reward."""
PARTS = {"next_token_loss": "next-token", "divergence": "from the teacher"}
"""Measure of distillation -> its name: what the training loss is a mixture of."""
REWARD = "reward"
"""The measure of the mean reward of answers that the model wrote."""
REPETITIVE = 0.1
"""Share of repeated words from which it is shown."""
_BLOCKS = "▁▂▃▄▅▆▇█"


class JSONReporter(Callback):
    """Print one JSON object per event and line: {"event": "step", "step": 1, "loss": ...}. Notes go to stderr."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stdout
        self._paused = False

    def tell(self, event: Event) -> None:
        if isinstance(event, Note):
            return print_error(event.text)
        if isinstance(event, Paused) and self._paused:
            return None
        self._paused = isinstance(event, Paused)
        return say(json.dumps({"event": event.name, **event.values()}), file=self._out, flush=True)


class TextReporter(Callback):
    """Print lines for a person: the first and last step, others at growing intervals, and every held-out loss."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self.out = out or sys.stdout
        self.steps = 1
        self.averages = Series()  # moving average of the loss at each step
        self.span = 1
        self.average = 0.0
        self._trained = 0.0  # seconds of training in this process
        self._printed_at: float | None = None  # value of `_trained` when the last line was printed
        self.pace = Pace()
        self._paused = False
        self._samples: list[Sample] = []

    def begin(self, event: Begin) -> None:
        self.steps, self.span = event.steps, span_of(event.steps)
        self._moving = Average(self.span)
        if event.step:
            for line in RunDirectory.open(event.run).metrics():
                self.add(line["step"], line["loss"])
            self.say(f"continuing after step {event.step} of {event.steps}")

    def add(self, step: int, loss: float) -> None:
        """Add a step's loss to the moving average."""
        self.average = self._moving.add(loss)
        self.averages.add(step, self.average)

    def step(self, event: Step) -> None:
        self.add(event.step, event.loss)
        self.pace.add(event.seconds, event.tokens)
        self._trained += event.seconds
        if event.step == self.steps or self._is_due():
            self._printed_at = self._trained
            self.say(
                f"{counter(event.step, self.steps)}  loss {event.loss:.4f}  "
                + "".join(f"{each}  " for each in shown_measures(event.measures))
                + f"lr {event.lr:.1e}  {self.pace.tokens_per_second:.0f} tok/s  "
                f"{duration(self.pace.left(self.steps - event.step))} left  footprint {event.footprint_mb:.0f} MB  "
                f"rss {event.rss_mb:.0f} MB"
            )

    def _is_due(self) -> bool:
        """Whether to print a line for this step: the first one, and then whenever the wait is over."""
        if self._printed_at is None:
            return True
        wait = min(max(LEAST_SECONDS, SHARE * self._printed_at), MOST_SECONDS)
        return self._trained - self._printed_at >= wait

    def evaluation(self, event: Evaluation) -> None:
        loss = [] if REWARD in event.measures else [f"loss {event.eval_loss:.4f}"]
        self.say(f"{counter(event.step, self.steps)}  held-out {'  '.join([*loss, *shown_measures(event.measures)])}")

    def paused(self, event: Paused) -> None:
        if not self._paused:
            self.say(f"paused: {event.reason}")
        self._paused = True

    def resumed(self, event: Resumed) -> None:
        self.say("resumed")
        self._paused = False

    def note(self, event: Note) -> None:
        self.say(event.text)

    def sample(self, event: Sample) -> None:
        self._samples.append(event)

    def end(self, event: End) -> None:
        averages = [loss for _, loss in self.averages.points]
        if len(averages) > 1:
            of = f" (average of {self.span} steps)" if self.span > 1 else ""
            self.say(f"loss {averages[0]:.3f} {sparkline(averages, _SPARKS)} {averages[-1]:.3f}{of}")
        self.conclude(event)

    def conclude(self, event: End) -> None:
        """Print the summary of the run."""
        summary = event.summary
        if event.status == "stopped early":
            found = "is higher than before training" if is_worse(summary) else "no longer fell"
            self.say(f"stopped early: the held-out loss {found}")
        if (result := held_out_losses(summary)) is not None:
            self.say(result)
        if (result := held_out_measures(summary)) is not None:
            self.say(result)
        predicted = summary.predicted_rss_mb
        self.say(
            f"{several(summary.steps, 'step')} in {duration(summary.seconds)}, "
            f"{summary.step_seconds:.2f} s each (median), {summary.tokens_per_second:.0f} tokens/s"
        )
        self.say(
            f"peak memory: footprint {summary.peak_footprint_mb:.1f} MB, "
            f"rss {summary.peak_rss_mb:.1f} MB" + (f" (predicted {predicted:.1f} MB)" if predicted else "")
        )
        for sample in self._samples:
            self.say("")
            for name, text in (("expected", sample.expected), ("before", sample.before), ("after", sample.after)):
                self.say(shorten(text), f"{name:<9} ")

    def say(self, text: str, label: str = "") -> None:
        """Print text, wrapped between words if the terminal is too narrow."""
        say(folded(clean(text), self.columns, label), file=self.out, flush=True)

    @property
    def columns(self) -> int | None:
        """Width of the terminal, or None without one."""
        return columns_of(self.out)


def shown_measures(measures: Mapping[str, float]) -> list[str]:
    """Return the measures of preferences, labels or distillation in words; none for other objectives."""
    found = [f"{name} {measures[key]:.4f}" for key, name in PARTS.items() if key in measures]
    if REWARD in measures:
        found.append(f"reward {measures[REWARD]:.3f}")
        found.append(f"answers of {measures['answer_length']:.0f} tokens")
        if measures["repetition"] >= REPETITIVE:
            found.append(f"{100 * measures['repetition']:.0f} % repeated")
    if "accuracy" in measures:
        found.append(f"accuracy {100 * measures['accuracy']:.0f} %")
    if "macro_f1" in measures:
        found.append(f"macro-F1 {measures['macro_f1']:.3f}")
    if "margin" in measures:
        found.append(f"margin {measures['margin']:.3f}")
    rewards = [f"{name} {measures[key]:+.3f}" for name, key in REWARDS.items() if key in measures]
    return [*found, *([f"rewards {', '.join(rewards)}"] if rewards else [])]


def shorten(text: str) -> str:
    """Return the text on one line, truncated if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= _ANSWER else line[: _ANSWER - 1] + "\u2026"


def counter(step: int, steps: int) -> str:
    """Format progress as "step   7/100"."""
    return f"step {step:>{len(str(steps))}}/{steps}"


def duration(seconds: float) -> str:
    """Format seconds as "0:07", "12:34" or "3:05:00"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw `values` with at most `width` block characters. Each shows the mean of its share of the values."""
    count = min(width, len(values))
    if not count:
        return ""
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)
