"""Held-out losses over seconds and over memory, one panel under the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from featherback.bench.svg import FAINT, GRID, LEFT, RIGHT, TOP, WIDTH, dot, key, line, picture, written

HEIGHT, GAP, BOTTOM = 220, 74, 48  # of a panel, between two, and below the last

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """Round numbers over a range, `length` units long from `start`, which may be negative."""

    ticks: tuple[float, ...]
    start: float
    length: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, length: float) -> Axis:
        """An axis that has room for all these."""
        low, high = min(values), max(values)
        step = _round((high - low or abs(high) or 1) / 5)
        first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
        return cls(tuple(each * step for each in range(first, last + 1)), start, length)

    def __call__(self, value: float) -> float:
        """Where a value is."""
        return self.start + (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0]) * self.length


def learning_svg(title: str, curves: Mapping[str, Points], ends: Mapping[str, tuple[float, float]], below: str) -> str:
    """`curves`: label -> (seconds, loss); `ends`: label -> (MB, loss). `below`: what the second panel shows."""
    labels, losses = list(curves), [loss for points in curves.values() for _, loss in points]
    second = TOP + HEIGHT + GAP
    seconds = Axis.over([0.0, *(end for points in curves.values() for end, _ in points)], LEFT, WIDTH - RIGHT - LEFT)
    memory = Axis.over([0.0, *(size for size, _ in ends.values())], LEFT, WIDTH - RIGHT - LEFT)
    parts = [*_frame(seconds, high := Axis.over(losses, TOP + HEIGHT, -HEIGHT), "seconds of training")]
    for index, points in enumerate(curves.values()):
        parts.append(line(" ".join(f"{seconds(x):.1f},{high(y):.1f}" for x, y in points), index))
    parts.append(written(LEFT, TOP - 10, "held-out loss, nats per token", "start", 13))
    last = Axis.over([loss for _, loss in ends.values()], second + HEIGHT, -HEIGHT)
    parts += _frame(memory, last, below)
    parts += [dot(memory(x), last(y), labels.index(label)) for label, (x, y) in ends.items()]
    return picture(title, second + HEIGHT + BOTTOM, [*parts, *key(labels)])


def _frame(across: Axis, up: Axis, below: str) -> Iterator[str]:
    """The grid of a panel with the numbers beside it."""
    for tick in up.ticks:
        yield f'<path d="M{LEFT} {up(tick):.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>'
        yield written(LEFT - 8, up(tick) + 4, f"{tick:.4g}", "end", colour=FAINT)
    for tick in across.ticks:
        yield written(across(tick), up.start + 18, f"{tick:.4g}", colour=FAINT)
    yield written((LEFT + WIDTH - RIGHT) / 2, up.start + 36, below)


def _round(step: float) -> float:
    """1, 2 or 5 times a power of ten, no less than `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(each * power for each in (1, 2, 5, 10) if each * power >= step * (1 - 1e-9))
