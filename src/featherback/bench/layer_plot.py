"""Values over layers as SVG, panel under panel, written by hand: no plotting library is needed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from featherback.bench.svg import FAINT, GRID, LEFT, RIGHT, TOP, WIDTH, key, line, picture, written

BOTTOM, HEIGHT, GAP = 48, 150, 46  # below the last panel, of one, and between two
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Panel:
    """One quantity: label -> a value per layer. `ticks`: of a linear axis; none: a logarithmic one, with room for 0."""

    title: str
    lines: Mapping[str, Sequence[float]]
    ticks: tuple[float, ...] = ()

    def axis(self) -> tuple[list[tuple[float, str]], float, float]:
        """Ticks as (position, text), and the lowest and highest position."""
        values = [value for line in self.lines.values() for value in line]
        if self.ticks:
            marks = [(tick, f"{tick:g}") for tick in self.ticks]
        else:
            decades = [math.log10(value) for value in values if value > 0] or [0.0]
            low, high = math.floor(min(decades)), max(math.ceil(max(decades)), math.floor(min(decades)) + 1)
            step = -(-(high - low) // 5)
            marks = [(float(at), f"10{str(at).translate(_RAISED)}") for at in range(low, high + 1, step)]
            if 0 in values:
                marks.insert(0, (low - 1.0, "0"))
        places = [self.position(value, marks[0][0]) for value in values]
        return marks, min(marks[0][0], *places), max(marks[-1][0], *places)

    def position(self, value: float, zero: float) -> float:
        """Where on the axis a value is; `zero`: the place of 0 on a logarithmic one."""
        return value if self.ticks else math.log10(value) if value > 0 else zero


def layers_svg(title: str, panels: Sequence[Panel], across: str = "layer") -> str:
    """The panels, one under the other, with one legend: labels have the same colour in all of them.

    `across`: what the values of a line are counted by.
    """
    labels = list(dict.fromkeys(label for panel in panels for label in panel.lines))
    count = max(len(values) for panel in panels for values in panel.lines.values())
    bottom = TOP + len(panels) * (HEIGHT + GAP) - GAP
    parts: list[str] = []
    for index, panel in enumerate(panels):
        parts += _panel(panel, TOP + index * (HEIGHT + GAP), labels, count)
    for layer in range(0, count, max(1, count // 6)):
        parts.append(written(_x(layer, count), bottom + 18, str(layer), colour=FAINT))
    parts.append(written((LEFT + WIDTH - RIGHT) / 2, bottom + 36, across))
    return picture(title, bottom + BOTTOM, [*parts, *key(labels)])


def _panel(panel: Panel, top: int, labels: Sequence[str], count: int) -> Iterator[str]:
    marks, low, high = panel.axis()

    def y(place: float) -> float:
        return top + (high - place) * HEIGHT / (high - low)

    yield written(LEFT, top - 10, panel.title, "start", 13)
    for place, text in marks:
        yield f'<path d="M{LEFT} {y(place):.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>'
        yield written(LEFT - 8, y(place) + 4, text, "end", colour=FAINT)
    for label, values in panel.lines.items():
        places = [panel.position(value, marks[0][0]) for value in values]
        points = " ".join(f"{_x(layer, count):.1f},{y(place):.1f}" for layer, place in enumerate(places))
        yield line(points, labels.index(label))


def _x(layer: int, count: int) -> float:
    return LEFT + layer * (WIDTH - LEFT - RIGHT) / max(count - 1, 1)
