"""What a whole run amounts to, gathered from its metrics line by line in memory that does not grow with the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Point = tuple[float, float]
MOST = 1440
"""Points of a curve: two for each of the picture's."""


class Series:
    """(x, y) points, at most MOST: when there are more, neighbours are joined into (the later x, the mean y)."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._stretch, self._count, self._sum = 1, 0, 0.0
        self._x = 0.0

    def add(self, x: float, y: float) -> None:
        """The next point."""
        self._x, self._sum, self._count = x, self._sum + y, self._count + 1
        if self._count < self._stretch:
            return
        self._points.append((x, self._sum / self._count))
        self._sum, self._count = 0.0, 0
        if len(self._points) == MOST:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [(later, (a + b) / 2) for (_, a), (later, b) in pairs]
            self._stretch *= 2

    @property
    def points(self) -> list[Point]:
        """In order, the unfinished last stretch included."""
        return [*self._points, (self._x, self._sum / self._count)] if self._count else list(self._points)


class Sample:
    """Every value of a short run; of a long one evenly spaced values, at most MOST."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._every, self._seen = 1, 0

    def add(self, value: float) -> None:
        """The next value."""
        if self._seen % self._every == 0:
            self._values.append(value)
            if len(self._values) == MOST:
                self._values, self._every = self._values[::2], 2 * self._every
        self._seen += 1

    @property
    def median(self) -> float:
        """The middle value, 0 without any. (NumPy's own and the statistics module would each bring in a megabyte.)"""
        if not self._values:
            return 0.0
        middle, ordered = len(self._values) // 2, sorted(self._values)
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Totals:
    """Of the lines of metrics.jsonl."""

    def __init__(self, lines: Iterable[Mapping[str, Any]]) -> None:
        self.losses, steps = Series(), Sample()
        self.first_loss: float | None = None
        self.final_loss: float | None = None
        self.seconds, self.tokens = 0.0, 0
        for line in lines:
            loss, seconds = line["loss"], line["seconds"]
            self.losses.add(line["step"], loss)
            steps.add(seconds)
            self.first_loss = loss if self.first_loss is None else self.first_loss
            self.final_loss = loss
            self.seconds, self.tokens = self.seconds + seconds, self.tokens + line["tokens"]
        self.step_seconds = steps.median
