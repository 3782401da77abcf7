"""A line plot over layers as SVG, written by hand: no plotting library is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 56, 190, 44, 48
COLOURS = ("#0072b2", "#009e73", "#56b4e9", "#d55e00", "#e69f00", "#cc79a7", "#000000")


def layer_svg(lines: Mapping[str, Sequence[float]], title: str) -> str:
    """`lines`: label -> a value a layer. Values from the smallest (at most 0) to the largest (at least 1)."""
    low = min(0.0, *(min(values) for values in lines.values()))
    high = max(1.0, *(max(values) for values in lines.values()))
    count = max(len(values) for values in lines.values())

    def x(layer: int) -> float:
        return LEFT + layer * (WIDTH - LEFT - RIGHT) / max(count - 1, 1)

    def y(value: float) -> float:
        return TOP + (high - value) * (HEIGHT - TOP - BOTTOM) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 24, title, "start", 15),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "layer"),
    ]
    for step in range(5):
        value = low + (high - low) * step / 4
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
        )
        parts.append(_text(LEFT - 8, y(value) + 4, f"{value:.2f}", "end"))
    for layer in range(0, count, max(1, count // 6)):
        parts.append(_text(x(layer), HEIGHT - BOTTOM + 18, str(layer)))
    for index, (label, values) in enumerate(lines.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(f"{x(layer):.1f},{y(value):.1f}" for layer, value in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        height = TOP + 16 + index * 20
        parts.append(
            f'<rect x="{WIDTH - RIGHT + 14}" y="{height - 9}" width="12" height="4" fill="{colour}"/>'
        )
        parts.append(_text(WIDTH - RIGHT + 32, height, label, "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "middle", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
