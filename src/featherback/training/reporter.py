"""What a run tells while it goes on: a live line on a terminal, plain lines elsewhere, or JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from featherback.terminal import complain, say
from featherback.training.curve import sparkline

_BAR_WIDTH = 20


class Reporter:
    """The base of the reporters: every event has a method, which does nothing."""

    def begin(self, steps: int, step: int) -> None:
        """The run is at `step` of `steps`."""

    def step(self, metrics: Mapping[str, Any]) -> None:
        """A step ended; `metrics` is its line of metrics.jsonl."""

    def evaluation(self, step: int, loss: float) -> None:
        """The held-out loss after `step` is known (nats per token)."""

    def paused(self, reason: str) -> None:
        """The run waits. Told again and again, with the reason as it is then, until `resumed`."""

    def resumed(self) -> None:
        """The run waits no longer."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def broken(self) -> None:
        """The run failed; the error is reported elsewhere."""

    def end(self, summary: Mapping[str, Any], losses: Sequence[float]) -> None:
        """The run is over; `losses` are those of its steps, or of a long run means of stretches of them."""


class JSONReporter(Reporter):
    """One JSON object per line: the steps, the evaluations, the summary."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self.out = out or sys.stdout
        self._paused = False

    def step(self, metrics: Mapping[str, Any]) -> None:
        self._write(metrics)

    def evaluation(self, step: int, loss: float) -> None:
        self._write({"step": step, "eval_loss": loss})

    def paused(self, reason: str) -> None:
        if not self._paused:
            self._write({"paused": reason})
        self._paused = True

    def resumed(self) -> None:
        self._write({"paused": None})
        self._paused = False

    def note(self, text: str) -> None:
        complain(text)

    def end(self, summary: Mapping[str, Any], losses: Sequence[float]) -> None:
        self._write({"summary": summary})

    def _write(self, value: Mapping[str, Any]) -> None:
        say(json.dumps(value), file=self.out, flush=True)


class TextReporter(Reporter):
    """For a person: a line that redraws itself if `live`, else about forty lines per run."""

    def __init__(self, out: IO[str] | None = None, live: bool | None = None) -> None:
        self.out = out or sys.stdout
        self.live = self.out.isatty() if live is None else live
        self.steps = self.every = 1
        self._seconds: list[float] = []  # of the latest steps, for the time left
        self._paused = False

    def begin(self, steps: int, step: int) -> None:
        self.steps = steps
        self.every = max(1, steps // 40)
        if step:
            self.note(f"continuing after step {step} of {steps}")

    def step(self, metrics: Mapping[str, Any]) -> None:
        step = metrics["step"]
        self._seconds = [*self._seconds[-19:], metrics["seconds"]]
        left = sum(self._seconds) / len(self._seconds) * (self.steps - step)
        counter = f"step {step:>{len(str(self.steps))}}/{self.steps}"
        line = (
            f"loss {metrics['loss']:.4f}  lr {metrics['lr']:.1e}  "
            f"{metrics['tokens'] / metrics['seconds']:.0f} tok/s  {duration(left)} left"
        )
        footprint, rss = f"{metrics['footprint_mb']:.0f}", f"{metrics['rss_mb']:.0f}"
        if self.live:
            line += f"  {footprint} MB (rss {rss})"
            room = _columns(self.out) - len(counter) - len(line) - 4
            self._redraw(f"{counter} {bar(step / self.steps, min(room, _BAR_WIDTH))}  {line}")
        elif step in (1, self.steps) or step % self.every == 0:
            self._print(f"{counter}  {line}  footprint {footprint} MB  rss {rss} MB")

    def evaluation(self, step: int, loss: float) -> None:
        self.note(f"step {step:>{len(str(self.steps))}}/{self.steps}  held-out loss {loss:.4f}")

    def paused(self, reason: str) -> None:
        if self.live:
            self._redraw(f"paused: {reason}")
        elif not self._paused:
            self._print(f"paused: {reason}")
        self._paused = True

    def resumed(self) -> None:
        if not self.live:
            self._print("going on")
        self._paused = False

    def note(self, text: str) -> None:
        self._redraw("")
        self._print(text)

    def broken(self) -> None:
        self._redraw("\n")

    def end(self, summary: Mapping[str, Any], losses: Sequence[float]) -> None:
        self._redraw("\n" if self._seconds else "")
        if len(losses) > 1:
            first, last = summary["first_loss"], summary["final_loss"]
            self._print(f"loss {first:.3f} {sparkline(losses, 50)} {last:.3f}")
        if summary.get("final_eval_loss") is not None:
            self._print(f"held-out loss {summary['first_eval_loss']:.4f} -> {summary['final_eval_loss']:.4f}")
        predicted = summary.get("predicted_rss_mb")
        self._print(
            f"{summary['steps']} steps in {duration(summary['seconds'])}, "
            f"{summary['step_seconds']:.2f} s each, {summary['tokens_per_second']:.0f} tokens/s"
        )
        self._print(
            f"peak memory: footprint {summary['peak_footprint_mb']:.1f} MB, "
            f"rss {summary['peak_rss_mb']:.1f} MB" + (f" (predicted {predicted:.1f} MB)" if predicted else "")
        )

    def _redraw(self, line: str) -> None:
        """Replace the live line; a newline leaves it standing."""
        if not self.live:
            return
        if line == "\n":
            self.out.write(line)
        else:
            width = _columns(self.out) - 1
            self.out.write("\r\x1b[K" + line[:width])
        self.out.flush()

    def _print(self, line: str) -> None:
        say(line, file=self.out, flush=True)


def bar(fraction: float, width: int) -> str:
    """A progress bar; nothing where there is no room for one."""
    full = round(fraction * width)
    return "━" * full + "╌" * (width - full)


def duration(seconds: float) -> str:
    """ "0:07", "12:34" or "3:05:00"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _columns(out: IO[str]) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
