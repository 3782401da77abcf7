"""Runs an optimiser on a model's own weights, each as soon as its gradient can be computed, a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from featherback.engine.backend.protocol import Array
from featherback.methods.whole.gradients import Gradient
from featherback.methods.whole.places import Place
from featherback.nn.context import Context
from featherback.optim.rule import TILE, Rule, Turn, tile_rows

PRODUCT = 4 * TILE
"""Values of a gradient that are computed at once: a product of few rows would mostly unpack its operands."""


class WeightRows(Protocol):
    """Where weights lie, and can be changed."""

    def read(self, ctx: Context, place: Place, rows: slice, out: Array) -> None:
        """out (n, cols) = rows of a weight, float32."""

    def write(self, ctx: Context, place: Place, rows: slice, values: Array, step: int) -> None:
        """Store float32 values (n, cols), rounded as the weight is held. `step` is the optimiser's."""


class States(Protocol):
    """What an optimiser remembers of every weight."""

    def part(
        self, ctx: Context, place: Place, name: str, first: int, count: int | None
    ) -> AbstractContextManager[Array]:
        """Elements of a state, flat, to be changed in place inside."""


@dataclass
class Found:
    """What a pass over all gradients has found of them."""

    squares: float = 0.0  # of the gradient, summed over all weights
    finite: bool = True  # the values after the step

    @property
    def norm(self) -> float:
        """The Euclidean norm of the gradient."""
        return math.sqrt(self.squares)


@dataclass(frozen=True)
class WholeOptimizer:
    """A rule applied to weights as their gradients come; one object for each step."""

    rule: Rule
    weights: WeightRows
    states: States
    turn: Turn
    numbers: Mapping[Place, int]  # of every weight: its random numbers depend on it
    updates: dict[Place, int] = field(default_factory=dict)  # of every weight, counted on: not all change in each step
    found: Found = field(default_factory=Found)

    def train(self, ctx: Context, place: Place, gradient: Gradient) -> None:
        """Change a weight by its gradient."""
        self.updates[place] = self.updates.get(place, 0) + 1
        turn = self.turn._replace(step=self.updates[place])
        self.rule.update(StoredTensor(self, ctx, place, gradient), turn)


@dataclass(frozen=True)
class NormOnly:
    """Changes nothing: it finds the norm of all gradients, for a step that is then clipped to it."""

    found: Found = field(default_factory=Found)

    def train(self, ctx: Context, place: Place, gradient: Gradient) -> None:
        """Add the squares of a gradient."""
        for _, part in gradient.few or gradient.tiles(product_rows(gradient.shape)):
            self.found.squares += ctx.ops.sum_squares(part)


class StoredTensor:
    """A weight in a file: an `optim.rule.Tensor`."""

    def __init__(self, of: WholeOptimizer, ctx: Context, place: Place, gradient: Gradient) -> None:
        self._of, self._ctx, self._place, self._gradient = of, ctx, place, gradient
        self.on, self.shape = ctx, gradient.shape
        self.key, self.role = (of.numbers[place],), place.role
        self._readings = 0

    def gradient(self) -> Iterator[tuple[slice, Array]]:
        self._readings += 1
        few = None if self._of.rule.moves_without_gradient else self._gradient.few
        step = tile_rows(self.shape)
        for rows, gradient in few or self._gradient.tiles(product_rows(self.shape)):
            if self._readings == 1:
                self._of.found.squares += self._ctx.ops.sum_squares(gradient)
            for first in range(rows.start, rows.stop, step):
                last = min(first + step, rows.stop)
                yield slice(first, last), gradient[first - rows.start : last - rows.start]

    @contextmanager
    def read(self, rows: slice) -> Iterator[Array]:
        with self._ctx.frame():
            values = self._ctx.floats("weights, tile", rows.stop - rows.start, self.shape[1])
            self._of.weights.read(self._ctx, self._place, rows, values)
            yield values

    @contextmanager
    def values(self, rows: slice) -> Iterator[Array]:
        ctx, of = self._ctx, self._of
        with self.read(rows) as values:
            yield values
            if not math.isfinite(ctx.ops.sum_squares(values)):
                of.found.finite = False
            of.weights.write(ctx, self._place, rows, values, of.turn.step)

    def state(self, name: str, first: int = 0, count: int | None = None) -> AbstractContextManager[Array]:
        return self._of.states.part(self._ctx, self._place, name, first, count)


def product_rows(shape: tuple[int, int]) -> int:
    """Rows of a gradient that are computed at once: some whole tiles."""
    return PRODUCT // TILE * tile_rows(shape)
