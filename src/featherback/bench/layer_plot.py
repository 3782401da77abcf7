"""Values over layers as SVG, panel under panel, written by hand: no plotting library is needed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 780, 62, 196, 60, 48
HEIGHT, GAP = 150, 46  # of a panel, and between two
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("none", "7 5", "2 4")  # so that a line that covers another lets it be seen
GRID, INK, FAINT = "#e4e4e4", "#222222", "#777777"
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
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + BOTTOM}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{bottom + BOTTOM}" fill="white"/>',
        _text(LEFT, 22, title, "start", 15),
    ]
    for index, panel in enumerate(panels):
        parts += _panel(panel, TOP + index * (HEIGHT + GAP), labels, count)
    for layer in range(0, count, max(1, count // 6)):
        parts.append(_text(_x(layer, count), bottom + 18, str(layer), colour=FAINT))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 36, across))
    for index, label in enumerate(labels):
        y = TOP + 10 + index * 22
        parts.append(_line(f"{WIDTH - RIGHT + 16},{y} {WIDTH - RIGHT + 44},{y}", index))
        parts.append(_text(WIDTH - RIGHT + 52, y + 4, label, "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, top: int, labels: Sequence[str], count: int) -> Iterator[str]:
    marks, low, high = panel.axis()

    def y(place: float) -> float:
        return top + (high - place) * HEIGHT / (high - low)

    yield _text(LEFT, top - 10, panel.title, "start", 13)
    for place, text in marks:
        yield f'<path d="M{LEFT} {y(place):.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>'
        yield _text(LEFT - 8, y(place) + 4, text, "end", colour=FAINT)
    for label, values in panel.lines.items():
        places = [panel.position(value, marks[0][0]) for value in values]
        points = " ".join(f"{_x(layer, count):.1f},{y(place):.1f}" for layer, place in enumerate(places))
        yield _line(points, labels.index(label))


def _x(layer: int, count: int) -> float:
    return LEFT + layer * (WIDTH - LEFT - RIGHT) / max(count - 1, 1)


def _line(points: str, index: int) -> str:
    style = f'stroke="{COLOURS[index % len(COLOURS)]}" stroke-dasharray="{DASHES[index % len(DASHES)]}"'
    return f'<polyline points="{points}" fill="none" stroke-width="2" stroke-linejoin="round" {style}/>'


def _text(x: float, y: float, text: str, anchor: str = "middle", size: int = 12, colour: str = INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">'
        f"{escape(text)}</text>"
    )
