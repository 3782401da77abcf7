"""The gradients of a model's own weights. They are computed when they are read, a few rows at a time.

See docs/derivations/whole.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from featherback.core.noise import Key
from featherback.engine.backend.protocol import Array, Int32, Operations
from featherback.methods.whole.directions import DirectionGradient, PerturbedWeights
from featherback.methods.whole.head import HeadGradient
from featherback.methods.whole.trained_weights import WeightId
from featherback.nn.context import Context
from featherback.nn.linear import LayerSink
from featherback.nn.loss import Head, HeadSource
from featherback.nn.slots import EMBEDDING, HEAD
from featherback.nn.softmax import HeadPass
from featherback.nn.span import pieces


class Gradient(Protocol):
    """The gradient of a weight (rows, cols); a vector is one row."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def few(self) -> Iterator[tuple[slice, Array]] | None:
        """Like `tiles`, but without rows that are zero. None: any row may be nonzero."""

    def tiles(self, height: int) -> Iterator[tuple[slice, Array]]:
        """Compute and yield (rows, gradient (n, cols), float32) in order, at most `height` rows at a time.

        An array is valid until the next one. Each call computes the gradient again.
        """


TrainWeight = Callable[[Context, WeightId, Gradient], None]
"""Uses the gradient of a weight. The weight is no longer needed in this step, so it may be changed."""


class WeightGradients:
    """Pass the gradients of all weights to `train`, one after the other. The head and the embedding come last.

    If the two are tied, they have one gradient, the sum of both. Only weights in `trained` (weight -> shape) have one.
    """

    def __init__(
        self,
        head: Head,
        source: HeadSource,
        embedding_scale: float,
        tied: bool,
        train: TrainWeight,
        trained: Mapping[WeightId, tuple[int, int]],
    ) -> None:
        self._head, self._source, self._scale, self._tied = head, source, embedding_scale, tied
        self._train, self._trained = train, trained
        self._done: HeadPass | None = None  # from the head's pass to the end of the step

    def layer(self, index: int) -> LayerSink:
        return _Layer(self, index)

    def head(self, ctx: Context, done: HeadPass) -> None:
        self._done = done

    def vector(self, ctx: Context, name: str, gradient: Array) -> None:
        self.train_weight(ctx, WeightId(name), InMemoryGradient(gradient.reshape(1, len(gradient))))

    def embedding(self, ctx: Context, ids: Int32, dx: Array) -> None:
        if self._scale != 1:
            ctx.ops.scale(dx, self._scale)
        width, done = self._head.weight.cols, self._done
        self._done = None
        of_head = None if done is None else HeadGradient(ctx, self._head, self._source, done)
        rows = TableGradient(ctx, (self._head.weight.rows, width), ids, dx, of_head if self._tied else None)
        if of_head is not None and not self._tied:
            self.train_weight(ctx, WeightId(HEAD), of_head)
        self.train_weight(ctx, WeightId(EMBEDDING), rows)

    def perturbation(self, ops: Operations, key: Key, factor: float) -> PerturbedWeights:
        names = frozenset((weight.part, weight.layer) for weight in self._trained)
        return PerturbedWeights(ops, key, factor, names, self._tied)

    def along(self, ctx: Context, slopes: Sequence[tuple[Key, float]]) -> None:
        moved = [self.perturbation(ctx.ops, key, slope) for key, slope in slopes]
        for weight, shape in self._trained.items():
            self._train(ctx, weight, DirectionGradient(ctx, weight, shape, moved))

    def train_weight(self, ctx: Context, weight: WeightId, gradient: Gradient) -> None:
        """Pass a gradient to `train` if its weight is trained."""
        if weight in self._trained:
            self._train(ctx, weight, gradient)


@dataclass(frozen=True)
class _Layer:
    """The sink of one layer."""

    of: WeightGradients
    index: int

    def matrix(self, ctx: Context, name: str, first_row: int, dy: Array, x: Array) -> None:
        self.of.train_weight(ctx, WeightId(name, self.index, first_row), ProductGradient(ctx, dy, x))

    def bias(self, ctx: Context, name: str, first_row: int, dy: Array) -> None:
        with ctx.frame():
            ones, total = ctx.operands("ones", 1, len(dy)), ctx.floats("gradient of a bias", 1, dy.shape[1])
            one = ctx.floats("one", 1, len(dy))
            ctx.ops.fill(one, 1)
            ctx.ops.cast(one, ones)
            ctx.ops.linear_backward(ones, ctx.ops.dense(dy), total)
            self.of.train_weight(
                ctx, WeightId(f"{name.removesuffix('_proj')}_bias", self.index, first_row), InMemoryGradient(total)
            )

    def vector(self, ctx: Context, name: str, gradient: Array) -> None:
        self.of.train_weight(ctx, WeightId(name, self.index), InMemoryGradient(gradient.reshape(1, len(gradient))))


@dataclass(frozen=True)
class InMemoryGradient:
    """A gradient that is held in memory."""

    values: Array  # (rows, cols)
    few: None = None

    @property
    def shape(self) -> tuple[int, int]:
        rows, cols = self.values.shape
        return rows, cols

    def tiles(self, height: int) -> Iterator[tuple[slice, Array]]:
        for first, last in pieces(len(self.values), height):
            yield slice(first, last), self.values[first:last]


@dataclass(frozen=True)
class ProductGradient:
    """The gradient of a projection: dW (out, in) = dy^T x."""

    ctx: Context
    dy: Array  # (T, out), an operand
    x: Array  # (T, in), an operand
    few: None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.dy.shape[1], self.x.shape[1]

    def tiles(self, height: int) -> Iterator[tuple[slice, Array]]:
        ctx, (rows, cols) = self.ctx, self.shape
        for first, last in ctx.tiles(rows, height):
            with ctx.frame():
                turned = ctx.operands("dy^T, tile", last - first, len(self.dy))
                gradient = ctx.floats("dW, tile", last - first, cols)
                ctx.ops.transpose(self.dy[:, first:last], turned)
                ctx.ops.linear_backward(turned, ctx.ops.dense(self.x), gradient)
                yield slice(first, last), gradient


@dataclass(frozen=True)
class TableGradient:
    """The gradient of the embedding (V, D): dx[t] is added to row ids[t]. If tied, the head's gradient is added."""

    ctx: Context
    shape: tuple[int, int]
    ids: Int32  # (T,)
    dx: Array  # (T, D)
    head: HeadGradient | None

    @property
    def few(self) -> Iterator[tuple[slice, Array]] | None:
        return self._rows() if self.head is None else None

    def tiles(self, height: int) -> Iterator[tuple[slice, Array]]:
        for rows, gradient in self._of_head(height) if self.head is None else self.head.tiles(height):
            self.ctx.ops.add_rows(self.dx, self.ids - rows.start, gradient)
            yield rows, gradient

    def _of_head(self, height: int) -> Iterator[tuple[slice, Array]]:
        """Yield zeros: there is no gradient of the head to add."""
        for first, last in self.ctx.tiles(self.shape[0], height):
            with self.ctx.frame():
                gradient = self.ctx.floats("gradient of the embedding, tile", last - first, self.shape[1])
                self.ctx.ops.fill(gradient, 0)
                yield slice(first, last), gradient

    def _rows(self) -> Iterator[tuple[slice, Array]]:
        for row in map(int, np.unique(self.ids)):
            with self.ctx.frame():
                gradient = self.ctx.floats("gradient of a row", 1, self.shape[1])
                self.ctx.ops.fill(gradient, 0)
                self.ctx.ops.add_rows(self.dx, self.ids - row, gradient)
                yield slice(row, row + 1), gradient
