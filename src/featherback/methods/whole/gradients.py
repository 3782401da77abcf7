"""The gradients of a model's own weights, computed as they are read: no more than some rows of one exist at a time.

See docs/derivations/whole.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from featherback.core.noise import Key
from featherback.engine.backend.protocol import Array, Int32, Operations
from featherback.methods.whole.directions import DirectionGradient, Moved
from featherback.methods.whole.head import HeadGradient
from featherback.methods.whole.places import Place
from featherback.nn.context import Context
from featherback.nn.linear import LayerSink
from featherback.nn.loss import Head, HeadSource
from featherback.nn.roles import EMBEDDING, HEAD
from featherback.nn.softmax import HeadPass
from featherback.nn.span import pieces


class Gradient(Protocol):
    """The gradient of a weight (rows, cols); a vector is one row."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def few(self) -> Iterator[tuple[slice, Array]] | None:
        """As `tiles`, without rows that are zero; None: any row may be another."""

    def tiles(self, height: int) -> Iterator[tuple[slice, Array]]:
        """Rows in order, at most `height` of them, and their gradient (n, cols), float32, until the next. Ever anew."""


Trains = Callable[[Context, Place, Gradient], None]
"""What does something with the gradient of a weight, which is no longer needed and may change."""


class WeightGradients:
    """Hands the gradients of all weights to `train`, one after the other: the head and the embedding come last.

    Tied, the two are one: its gradient is the sum of both. Only those of `trained`, with their shapes, are computed.
    """

    def __init__(
        self,
        head: Head,
        source: HeadSource,
        embedding_scale: float,
        tied: bool,
        train: Trains,
        trained: Mapping[Place, tuple[int, int]],
    ) -> None:
        self._head, self._source, self._scale, self._tied = head, source, embedding_scale, tied
        self._train, self._trained = train, trained
        self._done: HeadPass | None = None  # until the step ends

    def layer(self, index: int) -> LayerSink:
        return _Layer(self, index)

    def head(self, ctx: Context, done: HeadPass) -> None:
        self._done = done

    def vector(self, ctx: Context, name: str, gradient: Array) -> None:
        self.hand(ctx, Place(name), Held(gradient.reshape(1, len(gradient))))

    def embedding(self, ctx: Context, ids: Int32, dx: Array) -> None:
        if self._scale != 1:
            ctx.ops.scale(dx, self._scale)
        width, done = self._head.weight.cols, self._done
        self._done = None
        of_head = None if done is None else HeadGradient(ctx, self._head, self._source, done)
        rows = TableGradient(ctx, (self._head.weight.rows, width), ids, dx, of_head if self._tied else None)
        if of_head is not None and not self._tied:
            self.hand(ctx, Place(HEAD), of_head)
        self.hand(ctx, Place(EMBEDDING), rows)

    def moved(self, ops: Operations, key: Key, factor: float) -> Moved:
        names = frozenset((place.part, place.layer) for place in self._trained)
        return Moved(ops, key, factor, names, self._tied)

    def along(self, ctx: Context, slopes: Sequence[tuple[Key, float]]) -> None:
        moved = [self.moved(ctx.ops, key, slope) for key, slope in slopes]
        for place, shape in self._trained.items():
            self._train(ctx, place, DirectionGradient(ctx, place, shape, moved))

    def hand(self, ctx: Context, place: Place, gradient: Gradient) -> None:
        """To what trains it, if anything does."""
        if place in self._trained:
            self._train(ctx, place, gradient)


@dataclass(frozen=True)
class _Layer:
    """A layer's part of WeightGradients."""

    of: WeightGradients
    index: int

    def matrix(self, ctx: Context, name: str, first_row: int, dy: Array, x: Array) -> None:
        self.of.hand(ctx, Place(name, self.index, first_row), ProductGradient(ctx, dy, x))

    def bias(self, ctx: Context, name: str, first_row: int, dy: Array) -> None:
        with ctx.frame():
            ones, total = ctx.operands("ones", 1, len(dy)), ctx.floats("gradient of a bias", 1, dy.shape[1])
            one = ctx.floats("one", 1, len(dy))
            ctx.ops.fill(one, 1)
            ctx.ops.cast(one, ones)
            ctx.ops.linear_backward(ones, ctx.ops.dense(dy), total)
            self.of.hand(ctx, Place(f"{name.removesuffix('_proj')}_bias", self.index, first_row), Held(total))

    def vector(self, ctx: Context, name: str, gradient: Array) -> None:
        self.of.hand(ctx, Place(name, self.index), Held(gradient.reshape(1, len(gradient))))


@dataclass(frozen=True)
class Held:
    """A gradient that is in memory."""

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
    """dW (out, in) = dy^T x of a projection."""

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
    """Of the embedding (V, D): row ids[t] gets dx[t]; and of the head that is the same weight, if it is."""

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
        """No gradient: zeros."""
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
