"""Draw line charts as SVG, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from featherback.runs.totals import Point
from featherback.view.report import escaped
from featherback.view.report.curves import Curves

LARGE, SMALL = (1000, 340), (380, 230)
"""Width and height. The page scales both so that letters have the same size."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 46, 34
_ROW = 18  # height of a row of the legend; _TOP has room for one
_FOLD = 10  # a logarithmic axis is used if the highest value is this many times the lowest
_LEGEND_CHARACTER, _LEGEND_GAP = (6.4, 34)  # width of a 12 px letter; of a legend's stroke with its margins

COLOURS = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--text:#1c2128;--quiet:#5b6470;--grid:#e4e7eb;--raw:#8ab1e0;
--mean:#0b5fc0;--held:#c2510c;--limit:#c0262d;--second:#5c8a2e}
@media(prefers-color-scheme:dark){:root{--page:#0e1116;--card:#161b22;--text:#e6e9ee;--quiet:#98a2b0;--grid:#2a313b;
--raw:#4877b3;--mean:#62a8f5;--held:#f0934a;--limit:#f2686c;--second:#93c55f}}
"""
"""Every colour, for the light and the dark scheme."""

STYLE = """
.chart text{font:12px system-ui,sans-serif;fill:var(--quiet)}
.chart .title{font-size:14px;font-weight:600;fill:var(--text)}
.chart .grid{stroke:var(--grid)}.chart polyline{fill:none;stroke-linejoin:round}.chart .raw{stroke:var(--raw)}
.chart line.raw{stroke-width:2}
.chart .mean{stroke:var(--mean);stroke-width:2}.chart .held{stroke:var(--held);stroke-width:2}
.chart .second{stroke:var(--second);stroke-width:2}
.chart .limit{stroke:var(--limit);stroke-width:1.5;stroke-dasharray:6 4}
.chart circle.mean{fill:var(--mean)}.chart circle.held{fill:var(--held)}.chart circle.second{fill:var(--second)}
"""


@dataclass(frozen=True)
class Line:
    """A curve. `kind`: its class in STYLE. `dots`: also show its points."""

    kind: str
    label: str
    points: Sequence[Point]
    dots: bool = False


def chart(
    title: str,
    lines: Sequence[Line],
    size: tuple[int, int] = SMALL,
    limits: Sequence[tuple[str, float]] = (),
    from_zero: bool = False,
    attributes: str = "",
    by_ratio: bool = False,
) -> str:
    """Return an `<svg>` element of the curves that have points. The x axis begins at step 0.

    `limits`: (label, y) of horizontal lines. `attributes`: added to the element. `by_ratio`: use a logarithmic axis
    if the values span more than a factor of ten, and say so in the title.
    """
    width, height = size
    lines = [line for line in lines if line.points]
    ys = [y for line in lines for _, y in line.points] + [y for _, y in limits] + ([0.0] if from_zero else [])
    by_ratio = by_ratio and bool(ys) and 0 < _FOLD * min(ys) <= max(ys)
    title += ", logarithmic axis" if by_ratio else ""
    box = f'viewBox="0 0 {width} {height}"{attributes}'
    head = f'<svg class="chart" role="img" aria-label="{escaped(title)}" {box}>'
    name = f'<text class="title" x="{_LEFT}" y="18">{escaped(title)}</text>'
    if not lines:
        return f'{head}{name}<text x="{_LEFT}" y="44">no steps yet</text></svg>'
    xs = [x for line in lines for x, _ in line.points]
    named = [(line.kind, line.label) for line in lines if line.label]
    legend, rows = _legend([*named, *(("limit", label) for label, _ in limits)], width)
    top = _TOP + _ROW * (rows - 1)
    first, last = 0.0, max(xs)
    ticks = _ratio_ticks(min(ys), max(ys)) if by_ratio else _ticks(min(ys), max(ys), 5 if size == LARGE else 3)
    scale = math.log if by_ratio else float
    low, high = scale(ticks[0]), scale(ticks[-1])

    def place(point: Point) -> tuple[float, float]:
        x = _LEFT + (point[0] - first) / max(last - first, 1e-12) * (width - _LEFT - _RIGHT)
        y = top + (high - scale(point[1])) / (high - low) * (height - top - _BOTTOM)
        return round(x, 1), round(y, 1)

    parts = [head, name]
    for tick in ticks:
        y = place((first, tick))[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{_number(tick)}</text>')
    for step in _ticks(first, last, 5 if size == LARGE else 3):
        if step <= last and step == int(step):
            x = place((step, ticks[0]))[0]
            anchor = "end" if x > width - 2 * _RIGHT else "middle"
            text = counted(int(step)) if step else "step 0"
            parts.append(f'<text x="{x}" y="{height - 12}" text-anchor="{anchor}">{text}</text>')
    for _, limit in limits:
        y = place((first, limit))[1]
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y}" y2="{y}"/>')
    for line in lines:
        placed = [place(point) for point in line.points]
        if len(placed) > 1:
            points = " ".join(f"{x:g},{y:g}" for x, y in placed)
            parts.append(f'<polyline class="{line.kind}" points="{points}"/>')
        if line.dots or len(placed) == 1:
            parts += [f'<circle class="{line.kind}" cx="{x:g}" cy="{y:g}" r="3"/>' for x, y in placed]
    return "\n".join([*parts, *legend, "</svg>"])


def _legend(entries: Sequence[tuple[str, str]], width: int) -> tuple[list[str], int]:
    """Return the legend's elements, from left to right under the title, and the number of rows they take."""
    parts, x, rows = [], float(_LEFT), 1
    for kind, label in entries:
        wide = round(len(label) * _LEGEND_CHARACTER + _LEGEND_GAP)
        if x > _LEFT and x + wide > width:
            x, rows = float(_LEFT), rows + 1
        y = 33 + _ROW * (rows - 1)
        parts.append(f'<line class="{kind}" x1="{x:g}" x2="{x + 18:g}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{x + 24:g}" y="{y + 4}">{escaped(label)}</text>')
        x += wide
    return parts, rows


def loss_chart(curves: Curves, attributes: str = "", size: tuple[int, int] = LARGE) -> str:
    """Chart each step's loss, its moving average and the held-out loss."""
    smoothed = curves.span > 1
    own = "each step" if curves.losses.is_complete else "each step (lowest, highest)"
    lines = [
        Line("raw" if smoothed else "mean", own, curves.losses.extremes),
        Line("mean", f"moving average of {curves.span} steps", curves.averages.points if smoothed else ()),
        Line("held", "held-out", curves.held_out, dots=len(curves.held_out) <= 60),
    ]
    unit = ", nats per token" if curves.per_token else ""
    return chart(f"Loss{unit}", lines, size, attributes=attributes, by_ratio=True)


def loss_svg(curves: Curves) -> str:
    """Return the loss chart as a standalone SVG file."""
    drawn = loss_chart(curves, ' xmlns="http://www.w3.org/2000/svg"')
    style = f"<style>{COLOURS}{STYLE}svg{{background:var(--card)}}</style>"
    return drawn.replace(">", f">{style}", 1) + "\n"


def counted(number: int) -> str:
    """Format a number as 12 500, with narrow spaces."""
    return f"{number:,}".replace(",", "\u202f")


def _number(value: float) -> str:
    """Format a number of an axis; a whole number as `counted` does."""
    return counted(int(value)) if value == int(value) and abs(value) < 1e6 else f"{value:.6g}"


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Return axis ticks at 1, 2 and 5 times powers of ten that enclose `low` and `high`.

    Over more than three powers of ten: the powers only.
    """
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    units = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [unit * 10.0**power for power in range(first, last + 1) for unit in units]
    below = max(i for i, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
    above = min(i for i, tick in enumerate(ticks) if tick >= high * (1 - 1e-9))
    return ticks[below : above + 1]


def _ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return about `wanted` round numbers that enclose `low` and `high`."""
    span = max(high - low, 1e-3 * max(abs(high), 1e-6))
    power = 10.0 ** math.floor(math.log10(span / wanted))
    unit = next(power * m for m in (1, 2, 5, 10) if power * m >= span / wanted)
    first = math.floor(low / unit + 1e-9)
    ticks = [first * unit]
    while ticks[-1] < high - 1e-9 * unit or len(ticks) < 2:
        ticks.append((first + len(ticks)) * unit)
    return ticks
