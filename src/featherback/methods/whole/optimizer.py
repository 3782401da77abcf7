"""Run an optimiser on a model's own weights, each as soon as its gradient can be computed, a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from featherback.engine.backend.protocol import Array
from featherback.methods.whole.gradients import Gradient
from featherback.methods.whole.trained_weights import WeightId
from featherback.nn.context import Context
from featherback.optim.rule import TILE, Rule, StepArgs, tile_rows

PRODUCT = 4 * TILE
"""Values of a gradient that are computed together. With fewer rows, a product would mostly unpack its operands."""


class WeightRows(Protocol):
    """Reads and writes weights where they are stored."""

    def read(self, ctx: Context, weight: WeightId, rows: slice, out: Array) -> None:
        """Read rows of a weight into `out` (n, cols), float32."""

    def write(self, ctx: Context, weight: WeightId, rows: slice, values: Array, step: int) -> None:
        """Store float32 values (n, cols), rounded to the weight's type. `step`: the optimiser's step."""


class States(Protocol):
    """The optimiser states of every weight."""

    def part(
        self, ctx: Context, weight: WeightId, name: str, first: int, count: int | None
    ) -> AbstractContextManager[Array]:
        """Provide elements of a state, flat, for changing in place."""


@dataclass
class StepStatistics:
    """Results of a pass over all gradients."""

    squares: float = 0.0  # sum of the gradient's squares, over all weights
    finite: bool = True  # whether all values are finite after the step

    @property
    def norm(self) -> float:
        """The Euclidean norm of the gradient."""
        return math.sqrt(self.squares)


@dataclass(frozen=True)
class WholeOptimizer:
    """Apply a rule to weights as their gradients arrive. One object per step."""

    rule: Rule
    weights: WeightRows
    states: States
    turn: StepArgs
    numbers: Mapping[WeightId, int]  # an index per weight, for random numbers
    updates: dict[WeightId, int] = field(default_factory=dict)  # step count of each weight
    found: StepStatistics = field(default_factory=StepStatistics)

    def train(self, ctx: Context, weight: WeightId, gradient: Gradient) -> None:
        """Update a weight by its gradient."""
        self.updates[weight] = self.updates.get(weight, 0) + 1
        turn = self.turn._replace(step=self.updates[weight])
        self.rule.update(StoredTensor(self, ctx, weight, gradient), turn)


@dataclass(frozen=True)
class NormOnly:
    """Only compute the norm of all gradients, for a step that then clips it. Weights do not change."""

    found: StepStatistics = field(default_factory=StepStatistics)

    def train(self, ctx: Context, weight: WeightId, gradient: Gradient) -> None:
        """Add the squares of a gradient to the sum."""
        for _, part in gradient.few or gradient.tiles(product_rows(gradient.shape)):
            self.found.squares += ctx.ops.sum_squares(part)


class StoredTensor:
    """A weight in a file. Implements `optim.rule.Tensor`."""

    def __init__(self, of: WholeOptimizer, ctx: Context, weight: WeightId, gradient: Gradient) -> None:
        self._of, self._ctx, self._weight, self._gradient = of, ctx, weight, gradient
        self.on, self.shape = ctx, gradient.shape
        self.key, self.role = (of.numbers[weight],), weight.role
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
            self._of.weights.read(self._ctx, self._weight, rows, values)
            yield values

    @contextmanager
    def values(self, rows: slice) -> Iterator[Array]:
        ctx, of = self._ctx, self._of
        with self.read(rows) as values:
            yield values
            if not math.isfinite(ctx.ops.sum_squares(values)):
                of.found.finite = False
            of.weights.write(ctx, self._weight, rows, values, of.turn.step)

    def state(self, name: str, first: int = 0, count: int | None = None) -> AbstractContextManager[Array]:
        return self._of.states.part(self._ctx, self._weight, name, first, count)


def product_rows(shape: tuple[int, int]) -> int:
    """Return the rows of a gradient that are computed together: some whole tiles."""
    return PRODUCT // TILE * tile_rows(shape)
