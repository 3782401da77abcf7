"""Draw curves with braille characters. Each character has two columns of four dots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from featherback.runs.totals import Point

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # bit of each dot, by row and column


class Canvas:
    """A drawing area of `width` by `height` characters. `x` and `y` are the (lowest, highest) values shown."""

    def __init__(self, width: int, height: int, x: Point, y: Point) -> None:
        self.width, self.height = max(1, width), max(1, height)
        self._x, self._y = x, y
        self._dots: dict[tuple[int, int], int] = {}  # (row, column) of a character -> bits of its dots
        self._kinds: dict[tuple[int, int], str] = {}
        self._marks: dict[tuple[int, int], str] = {}

    def line(self, points: Sequence[Point]) -> None:
        """Draw a line. A column of dots shows the mean of its points; columns without points are interpolated."""
        columns: dict[int, list[float]] = {}
        for x, y in points:
            columns.setdefault(self._column(x), []).append(y)
        means = [(column, sum(ys) / len(ys)) for column, ys in sorted(columns.items())]
        for (a, y), (b, z) in zip(means[:1] + means, means):
            before = self._row(y)
            for column in range(a, b + 1):
                row = self._row(y + (z - y) * (column - a) / max(1, b - a))
                low, high = sorted((before, row))
                for each in range(low + (before < row), high + 1 - (before > row)):
                    self._set(each, column, "line")
                before = row

    def dots(self, points: Sequence[Point]) -> None:
        """Draw a dot for each point whose y is within the limits."""
        low, high = self._y
        for x, y in points:
            if low <= y <= high:
                self._set(self._row(y), self._column(x), "dot")

    def marks(self, points: Sequence[Point], mark: str) -> None:
        """Draw the character `mark` at each point, over anything already drawn there."""
        for x, y in points:
            self._marks[self._row(y) // 4, self._column(x) // 2] = mark

    def row(self, row: int) -> list[tuple[str, str]]:
        """Return one row of characters as runs of (text, kind). Kind is "line", "dot", "mark" or "" (empty)."""
        cells = []
        for column in range(self.width):
            place = (row, column)
            if place in self._marks:
                cells.append((self._marks[place], "mark"))
            elif place in self._dots:
                cells.append((chr(_BRAILLE + self._dots[place]), self._kinds[place]))
            else:
                cells.append((" ", ""))
        return [("".join(text for text, _ in cells), kind) for kind, cells in groupby(cells, lambda cell: cell[1])]

    def _set(self, row: int, column: int, kind: str) -> None:
        place = (row // 4, column // 2)
        if kind == "dot" and self._kinds.get(place) == "line":
            return  # a dot does not change a line
        self._dots[place] = self._dots.get(place, 0) | _DOTS[row % 4][column % 2]
        self._kinds[place] = kind

    def _column(self, x: float) -> int:
        first, last = self._x
        return round((x - first) / max(last - first, 1e-12) * (2 * self.width - 1))

    def _row(self, y: float) -> int:
        low, high = self._y
        return round((high - y) / (high - low) * (4 * self.height - 1))
