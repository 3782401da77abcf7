"""The loss curve: a line of block characters, and an SVG picture."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 36, 40
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#57606a}.title{font-size:14px;fill:#1f2328}"
    ".grid{stroke:#d8dee4;stroke-width:1}.each{fill:none;stroke:#9cc4f0;stroke-width:1}"
    ".mean{fill:none;stroke:#0b62c4;stroke-width:2}.eval{fill:none;stroke:#c2410c;stroke-width:2}.dot{fill:#c2410c}"
)

Point = tuple[float, float]


def sparkline(values: Sequence[float], width: int) -> str:
    """At most `width` block characters, each the mean of a stretch of `values`."""
    count = min(width, len(values))
    if not count:
        return ""
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)


def smooth(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """Exponential moving average, corrected for its start."""
    means, total, norm = [], 0.0, 0.0
    for value in values:
        total = weight * total + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        means.append(total / norm)
    return means


def loss_svg(steps: Sequence[Point], evaluations: Sequence[Point] = (), title: str = "Loss") -> str:
    """A picture of (step, loss) pairs: each step, their moving average, and the held-out loss."""
    points = [*steps, *evaluations]
    if not points:
        return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"/>\n'
    x_max = max(1.0, max(x for x, _ in points))
    ticks = _ticks(min(y for _, y in points), max(y for _, y in points))
    low, high = ticks[0], ticks[-1]

    def place(point: Point) -> Point:
        x = _LEFT + point[0] / x_max * (_WIDTH - _LEFT - _RIGHT)
        y = _TOP + (high - point[1]) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)
        return round(x, 1), round(y, 1)

    parts = [f'<text class="title" x="{_LEFT}" y="22">{_escape(title)}</text>']
    for tick in ticks:
        _, y = place((0, tick))
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{tick:.4g}</text>')
    for step in dict.fromkeys(round(x_max * i / 4) for i in range(5)):
        x, _ = place((step, low))
        parts.append(f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 20}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">step</text>')
    averages = smooth([y for _, y in steps])
    mean = [(x, average) for (x, _), average in zip(steps, averages, strict=True)]
    parts += [_polyline(name, [place(p) for p in line]) for name, line in (("each", steps), ("mean", mean))]
    parts.append(_polyline("eval", [place(p) for p in evaluations]))
    parts += [f'<circle class="dot" cx="{x}" cy="{y}" r="3"/>' for x, y in map(place, evaluations)]
    legend = "blue: training (moving average)" + (", orange: held-out" if evaluations else "")
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="22" text-anchor="end">{legend}</text>')
    body = "\n".join(part for part in parts if part)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}">\n'
        f'<style>{_STYLE}</style>\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _polyline(name: str, points: Sequence[Point]) -> str:
    if len(points) < 2:
        return ""
    return f'<polyline class="{name}" points="{" ".join(f"{x},{y}" for x, y in points)}"/>'


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, about five, from below `low` to above `high`."""
    span = max(high - low, 1e-3 * max(abs(high), 1e-3))
    power = 10.0 ** math.floor(math.log10(span / 5))
    unit = next(power * m for m in (1, 2, 5, 10) if power * m >= span / 5)
    first = int(low // unit)
    ticks = [first * unit]
    while ticks[-1] < high or len(ticks) < 2:
        ticks.append((first + len(ticks)) * unit)
    return ticks


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
