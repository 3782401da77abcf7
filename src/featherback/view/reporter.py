"""What a run prints where there is no terminal: plain lines, or JSON lines."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import IO

from featherback.core.terminal import clean, columns_of, complain, folded, say, several
from featherback.runs.callback import Callback
from featherback.runs.events import Begin, End, Evaluation, Event, Note, Paused, Resumed, Sample, Step
from featherback.runs.outcome import held_out, is_worse
from featherback.runs.run_directory import RunDirectory
from featherback.runs.totals import Average, Series, span_of

LEAST_SECONDS, MOST_SECONDS = 2.0, 900.0
"""Of training between two lines of steps, from the first of them to those of a long run."""
SHARE = 1 / 8
"""Of the time trained so far that passes before the next line: they get rarer as a run goes on."""
_RECENT = 20  # steps that the speed is of
_SPARKS = 50  # characters
_ANSWER = 200  # characters of an answer
_BLOCKS = "▁▂▃▄▅▆▇█"


class JSONReporter(Callback):
    """One JSON object per line and event: {"event": "step", "step": 1, "loss": ...}. Notes go to standard error."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stdout
        self._paused = False

    def tell(self, event: Event) -> None:
        if isinstance(event, Note):
            return complain(event.text)
        if isinstance(event, Paused) and self._paused:
            return None
        self._paused = isinstance(event, Paused)
        return say(json.dumps({"event": event.name, **event.values()}), file=self._out, flush=True)


class TextReporter(Callback):
    """For a person: the first and the last step, others at growing intervals, and every measured loss."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self.out = out or sys.stdout
        self.steps = 1
        self.averages = Series()  # of the loss of each step
        self.span = 1
        self.average = 0.0
        self._trained = 0.0  # seconds, in this process
        self._printed_at: float | None = None  # of them, the last line
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RECENT)  # (seconds, tokens) of the latest steps
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
        """A step's loss, which its average follows."""
        self.average = self._moving.add(loss)
        self.averages.add(step, self.average)

    def step(self, event: Step) -> None:
        self.add(event.step, event.loss)
        self._recent.append((event.seconds, event.tokens))
        self._trained += event.seconds
        if event.step == self.steps or self._is_due():
            self._printed_at = self._trained
            self.say(
                f"{counter(event.step, self.steps)}  loss {event.loss:.4f}  lr {event.lr:.1e}  {self.speed:.0f} tok/s  "
                f"{duration(self.left(event.step))} left  footprint {event.footprint_mb:.0f} MB  "
                f"rss {event.rss_mb:.0f} MB"
            )

    def _is_due(self) -> bool:
        """Whether a step is to be printed after so much training: the first is."""
        if self._printed_at is None:
            return True
        wait = min(max(LEAST_SECONDS, SHARE * self._printed_at), MOST_SECONDS)
        return self._trained - self._printed_at >= wait

    def evaluation(self, event: Evaluation) -> None:
        self.say(f"{counter(event.step, self.steps)}  held-out loss {event.eval_loss:.4f}")

    def paused(self, event: Paused) -> None:
        if not self._paused:
            self.say(f"paused: {event.reason}")
        self._paused = True

    def resumed(self, event: Resumed) -> None:
        self.say("going on")
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
        """Say what the run amounts to."""
        summary = event.summary
        if event.status == "stopped early":
            found = "is higher than before training" if is_worse(summary) else "no longer fell"
            self.say(f"stopped early: the held-out loss {found}")
        if (said := held_out(summary)) is not None:
            self.say(said)
        predicted = summary.get("predicted_rss_mb")
        self.say(
            f"{several(summary['steps'], 'step')} in {duration(summary['seconds'])}, "
            f"{summary['step_seconds']:.2f} s each (median), {summary['tokens_per_second']:.0f} tokens/s"
        )
        self.say(
            f"peak memory: footprint {summary['peak_footprint_mb']:.1f} MB, "
            f"rss {summary['peak_rss_mb']:.1f} MB" + (f" (predicted {predicted:.1f} MB)" if predicted else "")
        )
        for sample in self._samples:
            self.say("")
            for name, text in (("expected", sample.expected), ("before", sample.before), ("after", sample.after)):
                self.say(shorten(text), f"{name:<9} ")

    @property
    def speed(self) -> float:
        """Tokens per second of the latest steps."""
        return sum(tokens for _, tokens in self._recent) / max(self._seconds, 1e-9)

    @property
    def step_seconds(self) -> float:
        """Of the latest steps, their mean."""
        return self._seconds / max(len(self._recent), 1)

    def left(self, step: int) -> float:
        """Seconds, if the steps after `step` take what the latest took."""
        return self.step_seconds * (self.steps - step)

    @property
    def _seconds(self) -> float:
        return sum(seconds for seconds, _ in self._recent)

    def say(self, text: str, label: str = "") -> None:
        """Print a line, broken between words where a terminal is too narrow for it."""
        say(folded(clean(text), self.columns, label), file=self.out, flush=True)

    @property
    def columns(self) -> int | None:
        """Of the terminal, if there is one."""
        return columns_of(self.out)


def shorten(text: str) -> str:
    """A text as one line, cut where that is long."""
    line = " ".join(text.split())
    return line if len(line) <= _ANSWER else line[: _ANSWER - 1] + "\u2026"


def counter(step: int, steps: int) -> str:
    """ "step   7/100"."""
    return f"step {step:>{len(str(steps))}}/{steps}"


def duration(seconds: float) -> str:
    """ "0:07", "12:34" or "3:05:00"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sparkline(values: Sequence[float], width: int) -> str:
    """At most `width` block characters, each the mean of a stretch of `values`."""
    count = min(width, len(values))
    if not count:
        return ""
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)
