"""Summarises the metrics of a run, line by line, in memory that does not grow with the run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

Point = tuple[float, float]
MOST = 1440
"""Maximum points of a curve: half as many already match the resolution of a chart."""
_RECENT = 20  # steps over which the pace is averaged


class Average:
    """Exponential moving average over `span` values, with bias correction at the start."""

    def __init__(self, span: int) -> None:
        self._weight = 1 - 2 / (span + 1)
        self._sum = self._norm = 0.0

    def add(self, value: float) -> float:
        """Add a value and return the average."""
        self._sum = self._weight * self._sum + (1 - self._weight) * value
        self._norm = self._weight * self._norm + (1 - self._weight)
        return self._sum / self._norm


class Pace:
    """The speed of the latest steps."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=_RECENT)  # (seconds, tokens)

    def add(self, seconds: float, tokens: int) -> None:
        """Add a step."""
        self._steps.append((seconds, tokens))

    @property
    def tokens_per_second(self) -> float:
        return sum(tokens for _, tokens in self._steps) / max(self._seconds, 1e-9)

    @property
    def step_seconds(self) -> float:
        """Mean seconds per step."""
        return self._seconds / max(len(self._steps), 1)

    def left(self, steps: int) -> float:
        """Return the seconds that further `steps` take if they are as fast as the latest ones."""
        return self.step_seconds * steps

    @property
    def _seconds(self) -> float:
        return sum(seconds for seconds, _ in self._steps)


def span_of(steps: int) -> int:
    """Return the span of steps for the displayed loss average: a thirtieth of the steps, at least 10 or a quarter."""
    return max(1, min(10, steps // 4), steps // 30)


class Series:
    """A series of (x, y) points. At `most` points, neighbours are merged into (the later x, the mean y).

    The lowest and the highest y of merged points are kept too.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._points: list[tuple[float, float, float, float]] = []  # x, mean, low, high
        self._stretch, self._count, self._sum = 1, 0, 0.0
        self._x, self._low, self._high = 0.0, math.inf, -math.inf

    def add(self, x: float, y: float) -> None:
        """Add a point."""
        self._x, self._sum, self._count = x, self._sum + y, self._count + 1
        self._low, self._high = min(self._low, y), max(self._high, y)
        if self._count < self._stretch:
            return
        self._points.append(self._last())
        self._sum, self._count, self._low, self._high = 0.0, 0, math.inf, -math.inf
        if len(self._points) == self._most:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [
                (x, (a + b) / 2, min(low, lower), max(high, higher))
                for (_, a, low, high), (x, b, lower, higher) in pairs
            ]
            self._stretch *= 2

    @property
    def points(self) -> list[Point]:
        """The points in order, including the unfinished last group."""
        return [(x, mean) for x, mean, _, _ in self._all()]

    @property
    def is_complete(self) -> bool:
        """Whether no points have been merged."""
        return self._stretch == 1

    @property
    def extremes(self) -> list[Point]:
        """The points in order; if points were merged, the lowest and the highest y of each group."""
        if self.is_complete:
            return self.points
        return [(x, y) for x, _, low, high in self._all() for y in (low, high)]

    def _all(self) -> list[tuple[float, float, float, float]]:
        return [*self._points, self._last()] if self._count else self._points

    def _last(self) -> tuple[float, float, float, float]:
        return self._x, self._sum / self._count, self._low, self._high


class Sample:
    """All values of a short run, or at most MOST evenly spaced values of a long one."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._every, self._seen = 1, 0

    def add(self, value: float) -> None:
        """Add a value."""
        if self._seen % self._every == 0:
            self._values.append(value)
            if len(self._values) == MOST:
                self._values, self._every = self._values[::2], 2 * self._every
        self._seen += 1

    @property
    def median(self) -> float:
        """The median, 0 without values. (NumPy's median and the statistics module would each load a megabyte.)"""
        if not self._values:
            return 0.0
        middle, ordered = len(self._values) // 2, sorted(self._values)
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Ends:
    """Means of values over the early steps of a run (the first `span_of`) and over the late ones (the last quarter)."""

    def __init__(self, count: int) -> None:
        """`count`: the number of steps."""
        self._count, self._early, self._late = count, span_of(count), max(1, count // 4)
        self.early, self.late = dict[str, float](), dict[str, float]()

    def add(self, number: int, values: Mapping[str, float]) -> None:
        """Add the values of a step; `number` counts from 0."""
        for means, steps, counts in (
            (self.early, self._early, number < self._early),
            (self.late, self._late, number >= self._count - self._late),
        ):
            if counts:
                for name, value in values.items():
                    means[name] = means.get(name, 0.0) + value / steps


class Totals:
    """Totals and losses of a run, from the lines of its metrics.jsonl.

    `early` and `late`: means of the training loss and of the numbers `names`, as in `Ends`; empty for a run without
    steps.
    """

    def __init__(self, lines: Iterable[Mapping[str, Any]], count: int, names: Iterable[str] = ()) -> None:
        """`lines`: metrics of the steps, in order. `count`: the number of lines."""
        steps, ends, wanted = Sample(), Ends(count), ("loss", *names)
        self.first_loss: float | None = None
        self.final_loss: float | None = None
        self.seconds, self.tokens = 0.0, 0
        for number, line in enumerate(lines):
            loss, seconds = line["loss"], line["seconds"]
            steps.add(seconds)
            self.first_loss = loss if self.first_loss is None else self.first_loss
            self.final_loss = loss
            ends.add(number, {name: line[name] for name in wanted if name in line})
            self.seconds, self.tokens = self.seconds + seconds, self.tokens + line["tokens"]
        self.early, self.late = ends.early, ends.late
        self.step_seconds = steps.median
