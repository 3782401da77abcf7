"""The live view of a run on a terminal: a few lines that are redrawn in place and remain when the run ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import IO

from featherback.core.terminal import say_styled
from featherback.runs.events import Begin, End, Evaluation, Failed, Note, Paused, Resumed, Step
from featherback.runs.outcome import is_worse
from featherback.runs.run_directory import RunDirectory
from featherback.runs.totals import Average, Series, span_of
from featherback.view.frame import Facts, Line, frame
from featherback.view.reporter import TextReporter

MOST_POINTS = 512  # of a curve: more than a terminal has dots
_REDRAW = 0.1  # seconds between drawings: faster is not visible
_SIZE = os.terminal_size((80, 24))  # assumed if the terminal does not report its size


class LiveView(TextReporter):
    """Redraw after each step, but at most every `redraw` seconds. `size` returns the terminal's columns and rows."""

    def __init__(
        self, out: IO[str], size: Callable[[], os.terminal_size] | None = None, redraw: float = _REDRAW
    ) -> None:
        super().__init__(out)
        self._size = size or (lambda: _size_of(out))
        self._colour = not os.environ.get("NO_COLOR")
        self._redraw, self._drawn_at = redraw, -redraw
        self._shown: list[int] = []  # width of each line on the screen
        self._facts: Facts | None = None

    def begin(self, event: Begin) -> None:
        self.steps, self.span = event.steps, span_of(event.steps)
        self._moving = Average(self.span)
        self._facts = facts = Facts(
            steps=event.steps,
            span=self.span,
            first=event.step,
            memory_mb=event.memory_mb,
            predicted_rss_mb=event.predicted_rss_mb,
            losses=Series(MOST_POINTS),
            averages=Series(MOST_POINTS),
            held_out=Series(MOST_POINTS),
        )
        if event.step:
            run = RunDirectory.open(event.run)
            for line in run.metrics():
                self.add(line["step"], line["loss"])
            for evaluation in run.record.evaluations:
                facts.evaluated(evaluation.step, evaluation.loss, evaluation.measures)
            self.say(f"continuing after step {event.step} of {event.steps}")

    def step(self, event: Step) -> None:
        assert self._facts is not None
        self.pace.add(event.seconds, event.tokens)
        self.add(event.step, event.loss)
        self._facts.last, self._facts.paused = event, None
        self._draw(now=event.step == self.steps)

    @property
    def columns(self) -> int | None:
        return self._size().columns

    def add(self, step: int, loss: float) -> None:
        super().add(step, loss)
        assert self._facts is not None
        self._facts.average = self.average
        self._facts.losses.add(step, loss)
        self._facts.averages.add(step, self.average)

    def evaluation(self, event: Evaluation) -> None:
        assert self._facts is not None
        self._facts.evaluated(event.step, event.eval_loss, event.measures)
        self._draw(now=True)

    def paused(self, event: Paused) -> None:
        if self._facts is not None:
            self._facts.paused = event.reason
        self._draw()

    def resumed(self, event: Resumed) -> None:
        if self._facts is not None:
            self._facts.paused = None
        self._draw(now=True)

    def note(self, event: Note) -> None:
        self._erase()
        self.say(event.text)
        self._draw(now=True)

    def failed(self, event: Failed) -> None:
        self._leave(event.name)

    def end(self, event: End) -> None:
        worse = event.status != "interrupted" and is_worse(event.summary)
        self._leave("worse than before training" if worse else event.status)
        self.conclude(event)

    def _leave(self, ended: str) -> None:
        """Draw the view a last time and leave it on the screen. `ended`: how the run ended."""
        if self._facts is not None:
            self._facts.ended, self._facts.paused = ended, None
        self._draw(now=True)
        self._facts, self._shown = None, []

    def _draw(self, now: bool = False) -> None:
        facts = self._facts
        if facts is None or (facts.last is None and not facts.held_out.points and facts.paused is None):
            return
        if not now and time.monotonic() - self._drawn_at < self._redraw:
            return
        facts.speed, facts.step_seconds = self.pace.tokens_per_second, self.pace.step_seconds
        size = self._size()
        lines = frame(facts, size.columns - 1, size.lines - 2)  # the cursor's line below, the command's above
        self._paint(lines)
        self._drawn_at = time.monotonic()

    def _paint(self, lines: list[Line]) -> None:
        """Draw these lines over the ones on the screen."""
        text = "".join(f"{line.styled(self._colour)}\x1b[K\n" for line in lines)
        say_styled(self._up() + text + "\x1b[J", end="", file=self.out, flush=True)
        self._shown = [line.width for line in lines]

    def _erase(self) -> None:
        if self._shown:
            say_styled(self._up() + "\x1b[J", end="", file=self.out, flush=True)
            self._shown = []

    def _up(self) -> str:
        """Return the sequence that moves the cursor to the start of the last drawing.

        A terminal that was made narrower has wrapped the lines, so each may take several rows.
        """
        columns = self._size().columns
        rows = sum(max(1, -(-width // columns)) for width in self._shown)
        return f"\r\x1b[{rows}A" if rows else "\r"


def _size_of(out: IO[str]) -> os.terminal_size:
    try:
        size = os.get_terminal_size(out.fileno())
    except (OSError, ValueError):
        return _SIZE
    return os.terminal_size((size.columns or _SIZE.columns, size.lines or _SIZE.lines))
