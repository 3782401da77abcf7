"""What the benchmarks' pictures are made of: SVG written by hand, so that no plotting library is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP = 780, 62, 196, 60  # of a picture; beside and above its panels
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("none", "7 5", "2 4")  # so that a line that covers another lets it be seen
GRID, INK, FAINT = "#e4e4e4", "#222222", "#777777"


def picture(title: str, height: float, parts: Iterable[str]) -> str:
    """A whole picture, `height` units high."""
    start = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        written(LEFT, 22, title, "start", 15),
    ]
    return "\n".join([*start, *parts, "</svg>"]) + "\n"


def key(labels: Sequence[str]) -> Iterator[str]:
    """Which line is whose, to the right of the panels."""
    for index, label in enumerate(labels):
        y = TOP + 10 + index * 22
        yield line(f"{WIDTH - RIGHT + 16},{y} {WIDTH - RIGHT + 44},{y}", index)
        yield written(WIDTH - RIGHT + 52, y + 4, label, "start")


def line(points: str, index: int) -> str:
    """Line number `index` through points written as "x,y x,y"."""
    style = f'stroke="{colour(index)}" stroke-dasharray="{DASHES[index % len(DASHES)]}"'
    return f'<polyline points="{points}" fill="none" stroke-width="2" stroke-linejoin="round" {style}/>'


def dot(x: float, y: float, index: int) -> str:
    """Where line number `index` ends, hollow where another has its colour."""
    fill = colour(index) if index < len(COLOURS) else "white"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{colour(index)}" stroke-width="2"/>'


def colour(index: int) -> str:
    """Of line number `index`."""
    return COLOURS[index % len(COLOURS)]


def written(x: float, y: float, text: str, anchor: str = "middle", size: int = 12, colour: str = INK) -> str:
    """Text at a place."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'
    )
