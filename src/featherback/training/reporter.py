"""What a run prints where there is no terminal: plain lines, or JSON lines."""

from __future__ import annotations

import json
import sys
from collections import deque
from typing import IO

from featherback.terminal import complain, say, several
from featherback.training.callback import Callback
from featherback.training.events import Begin, End, Evaluation, Event, Note, Paused, Resumed, Sample, Step
from featherback.training.outcome import held_out, is_worse
from featherback.training.run_directory import RunDirectory
from featherback.training.sparkline import sparkline
from featherback.training.totals import Series

LINES = 40
"""Of a run's steps, about."""
SECONDS = 60.0
"""Of training, after which a step is printed even if there are more lines for it."""
_RECENT = 20  # steps that the speed is of
_SPARKS = 50  # characters
_ANSWER = 200  # characters of an answer


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
    """For a person: about LINES lines per run, and more if its steps are slow."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self.out = out or sys.stdout
        self.steps = 1
        self.losses = Series()
        self._silent = 0.0  # seconds of training since the last line
        self._recent: deque[tuple[float, int]] = deque(
            maxlen=_RECENT
        )  # (seconds, tokens) of the latest steps
        self._paused = False
        self._samples: list[Sample] = []

    def begin(self, event: Begin) -> None:
        self.steps = event.steps
        if event.step:
            for line in RunDirectory.open(event.run).metrics():
                self.losses.add(line["step"], line["loss"])
            self.say(f"continuing after step {event.step} of {event.steps}")

    def step(self, event: Step) -> None:
        self.losses.add(event.step, event.loss)
        self._recent.append((event.seconds, event.tokens))
        self._silent += event.seconds
        ends = event.step in (1, self.steps)
        if ends or event.step % max(1, self.steps // LINES) == 0 or self._silent >= SECONDS:
            self._silent = 0.0
            self.say(
                f"{counter(event.step, self.steps)}  loss {event.loss:.4f}  lr {event.lr:.1e}  {self.speed:.0f} tok/s  "
                f"{duration(self.left(event.step))} left  footprint {event.footprint_mb:.0f} MB  "
                f"rss {event.rss_mb:.0f} MB"
            )

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
        summary = event.summary
        losses = [loss for _, loss in self.losses.points]
        if len(losses) > 1:
            first, last = summary["first_loss"], summary["final_loss"]
            self.say(f"loss {first:.3f} {sparkline(losses, _SPARKS)} {last:.3f}")
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
            for name, text in (
                ("expected", sample.expected),
                ("before", sample.before),
                ("after", sample.after),
            ):
                self.say(f"{name:<9} {shorten(text)}")

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

    def say(self, line: str) -> None:
        """Print a line."""
        say(line, file=self.out, flush=True)


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
