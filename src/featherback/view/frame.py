"""Lay out the live view: lines of styled text that fit the terminal's width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from featherback.core.terminal import clean
from featherback.runs.events import Step
from featherback.runs.totals import Series
from featherback.view.braille import Canvas
from featherback.view.reporter import counter, duration, shown_measures

STYLES = {"": "", "dim": "2", "bold": "1", "loss": "36", "held": "33", "good": "32", "bad": "31"}
_MARGIN = 2
_LABEL = 10  # columns of the labels
_BAR = 28  # most columns of the memory bar
_LEAST_CURVE, _MOST_CURVE = 3, 8  # rows of the curve
_LEAST_WIDTH, _MOST_WIDTH = 30, 120
_LEAST_POINTS = 4  # with fewer points no curve is drawn
_HELD_OUT = "◆"


@dataclass
class Facts:
    """The state of the run that the live view shows."""

    steps: int
    span: int  # steps in the moving average
    first: int  # steps done before this process began
    memory_mb: float | None
    predicted_rss_mb: float | None
    losses: Series
    averages: Series
    held_out: Series
    average: float = 0.0
    last: Step | None = None
    evaluation: tuple[int, float] | None = None
    held_out_measures: Mapping[str, float] = field(default_factory=dict)  # of preferences, at that evaluation
    best: tuple[int, float] | None = None  # (step, loss), measured after training began
    paused: str | None = None
    ended: str | None = None  # how the run ended, in words
    speed: float = 0.0  # tokens per second
    step_seconds: float = 0.0

    def evaluated(self, step: int, loss: float, measures: Mapping[str, float] | None = None) -> None:
        """Record the held-out loss measured after `step`, and the measures of preferences."""
        self.evaluation = (step, loss)
        self.held_out_measures = measures or {}
        self.held_out.add(step, loss)
        if step and (self.best is None or loss < self.best[1]):
            self.best = (step, loss)

    @property
    def step(self) -> int:
        """Number of steps done."""
        return self.last.step if self.last else self.first


class Line:
    """A line made of pieces of text, each with its own style."""

    def __init__(self, *parts: tuple[str, str]) -> None:
        self.parts = [(text, style) for text, style in parts if text]

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.parts)

    @property
    def width(self) -> int:
        return len(self.text)

    def styled(self, colour: bool) -> str:
        """Return the text, with escape sequences if `colour`."""
        if not colour:
            return self.text
        return "".join(f"\x1b[{STYLES[style]}m{text}\x1b[0m" if STYLES[style] else text for text, style in self.parts)


def frame(facts: Facts, width: int, height: int) -> list[Line]:
    """Lay out at most `height` lines of at most `width` columns. If space is short, the curve is dropped first."""
    width = max(1, min(width, _MOST_WIDTH))
    below = _facts(facts, width)
    lines = [_progress(facts, width)]
    room = height - len(lines) - len(below) - 2  # minus the axis, and an empty line above the facts
    if room >= _LEAST_CURVE and width >= _LEAST_WIDTH and len(facts.averages.points) >= _LEAST_POINTS:
        lines += _curve(facts, width, min(room, _MOST_CURVE))
        lines.append(Line())
    return [*lines, *below][: max(1, height)]


def _progress(facts: Facts, width: int) -> Line:
    counted = counter(facts.step, facts.steps)
    part = facts.step / max(facts.steps, 1)
    if facts.paused is not None:
        reason = f": {clean(facts.paused, one_line=True)}"
        return fitted([(" " * _MARGIN + counted, "bold"), ("  paused", "held"), (reason, "held")], width)
    done = facts.ended == "finished" or (facts.ended is None and facts.step == facts.steps)
    ahead = facts.step_seconds * (facts.steps - facts.step)
    left = "done" if done else facts.ended or f"{duration(ahead)} left"
    percent = f"{int(100 * part):>3} %"
    room = width - _MARGIN - len(counted) - len(percent) - len(left) - 6
    if room < 5:
        return fitted([(" " * _MARGIN, ""), (counted, "bold"), (f"  {left}", "")], width)
    full = int(part * room)
    parts = [
        (" " * _MARGIN, ""),
        (counted + "  ", "bold"),
        ("━" * full, "good" if done else "loss"),
        ("╌" * (room - full), "dim"),
        (f"  {percent}  ", ""),
        (left, "good" if done else ""),
    ]
    return Line(*parts)


def _facts(facts: Facts, width: int) -> list[Line]:
    lines = []
    if (last := facts.last) is not None:
        of = f"   average of {facts.span} steps" if facts.span > 1 else ""
        now = f"   latest {last.loss:.4f}" if facts.span > 1 else ""
        parts = [(f"{facts.average:.4f}", "loss"), (of, ""), (now, "dim")]
        lines.append(_fact("loss", parts, width))
    if facts.evaluation is not None:
        step, loss = facts.evaluation
        at = "   before training" if step == 0 else f"   at step {step}"
        best = ""
        if facts.best is not None:
            when, lowest = facts.best
            best = ", the best so far" if when == step else f"   best {lowest:.4f} at {when}"
        lines.append(_fact("held-out", [(f"{loss:.4f}", "held"), (at, ""), (best, "")], width))
    latest = last.measures if last else {}
    for label, measures in (
        ("parts" if "divergence" in latest else "answers", latest),
        ("held-out", facts.held_out_measures),
    ):
        if shown := shown_measures(measures):
            lines.append(_fact(label, [(f"{each}   ", "") for each in shown], width))
    if last is not None:
        pace = f"   {facts.step_seconds:.2f} s per step"
        parts = [(f"{facts.speed:.0f} tok/s", ""), (pace, ""), (f"   lr {last.lr:.1e}", "dim")]
        lines.append(_fact("speed", parts, width))
        lines.append(_memory(facts, last, width))
    return lines


def _memory(facts: Facts, last: Step, width: int) -> Line:
    footprint = (f"   footprint {last.footprint_mb:.0f} MB", "dim")
    if facts.memory_mb is None:
        predicted = f" of {facts.predicted_rss_mb:.0f} predicted" if facts.predicted_rss_mb else ""
        return _fact("memory", [(f"{last.rss_mb:.0f} MB", ""), (predicted, ""), footprint], width)
    part = last.rss_mb / facts.memory_mb
    amount = f"{last.rss_mb:.0f} of {facts.memory_mb:.0f} MB"
    room = min(_BAR, width - _MARGIN - _LABEL - len(amount) - 2)
    bar = []
    if room >= 5:
        full = max(0, min(room, round(part * room)))
        bar = [("━" * full, "bad" if part > 1 else "good"), ("╌" * (room - full) + "  ", "dim")]
    parts = [*bar, (amount, ""), footprint]
    return _fact("memory", parts, width)


def _fact(label: str, parts: Sequence[tuple[str, str]], width: int) -> Line:
    return fitted([(" " * _MARGIN + f"{label:<{_LABEL}}", "dim"), *parts], width)


def fitted(parts: Sequence[tuple[str, str]], width: int) -> Line:
    """Join the parts that fit into `width` columns, in order. Only the first two parts may be cut short."""
    kept: list[tuple[str, str]] = []
    used = 0
    for text, style in parts:
        if used + len(text) > width:
            if len(kept) < 2:
                kept.append((text[: width - used], style))
            break
        kept.append((text, style))
        used += len(text)
    return Line(*kept)


def _curve(facts: Facts, width: int, height: int) -> list[Line]:
    """Draw the loss: its moving average as a line, each step as a dot, held-out losses as marks, with two axes."""
    averages, held_out = facts.averages.points, facts.held_out.points
    shown = [y for _, y in (*averages, *held_out)]
    low, high = min(shown), max(shown)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    names = {0: _amount(high), height - 1: _amount(low)}
    axis = max(map(len, names.values()))
    start = min(averages[0][0], held_out[0][0] if held_out else averages[0][0])
    end = max(averages[-1][0], held_out[-1][0] if held_out else 0)
    canvas = Canvas(width - _MARGIN - axis - 3, height, (start, end), (low, high))
    canvas.line(averages)
    if facts.span > 1:
        canvas.dots(facts.losses.points)
    canvas.marks(held_out, _HELD_OUT)
    lines = []
    for row in range(height):
        name, tick = names.get(row, ""), "┤" if row in names else "│"
        styles = {"line": "loss", "dot": "dim", "mark": "held", "": ""}
        cells = [(text, styles[kind]) for text, kind in canvas.row(row)]
        lines.append(Line((" " * _MARGIN + f"{name:>{axis}} {tick}", "dim"), *cells))
    first, last = f"{start:.0f}", f"{end:.0f}"
    legend = [("  ", ""), ("━", "loss"), (" training", "dim")]
    if held_out:
        legend += [("  ", ""), (_HELD_OUT, "held"), (" held-out", "dim")]
    room = canvas.width - len(first) - len(last) - sum(len(text) for text, _ in legend) - 2
    under = [(" " * (_MARGIN + axis + 1) + "└", "dim"), (first, "dim")]
    if room >= 0:
        before = room // 2
        under += [(" " + "─" * before, "dim"), *legend, ("  " + "─" * (room - before - 1) + " ", "dim")]
        under.append((last, "dim"))
    else:
        under.append((" " * max(1, canvas.width - len(first) - len(last)) + last, "dim"))
    lines.append(fitted(under, width))
    return lines


def _amount(value: float) -> str:
    return f"{value:.2f}" if 0.1 <= abs(value) < 1000 else f"{value:.1e}"
