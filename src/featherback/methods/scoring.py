"""Run a head that reads whole sequences on the residual stream after the last block: loss and gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.protocol import Array
from featherback.methods.assembly import Parameters
from featherback.methods.sweep import RoundTrip, Sweep
from featherback.nn.context import Context
from featherback.nn.objectives.base import Numbers, Objective, PerTarget
from featherback.nn.pooling import PooledHead
from featherback.nn.score import SCORE, ScoreHead


class WholeHead(Protocol):
    """A head that reads whole sequences. `rows`: the last token of each, in a span."""

    def scores(self, ctx: Context, x: Array, rows: NDArray[np.intp]) -> Numbers:
        """Return the numbers (n, K) of each sequence, from x (T, D), float32, the final residual stream."""

    def backward(self, ctx: Context, x: Array, rows: NDArray[np.intp], slopes: Numbers) -> None:
        """x becomes the gradient of the loss. `slopes` (n, K): the loss's derivative by each number."""


class WholeSequences(ABC):
    """The loss behind a head that gives numbers for each whole sequence: scores, or an embedding."""

    def loss(self, sweep: Sweep, objective: Objective) -> float:
        """Return the summed loss of the residual stream."""
        with self._head(sweep.ctx, sweep) as head:
            return objective(sweep.batch.supervised(), PerTarget(self._scores(sweep, head), _NONE))[0]

    def gradient(self, trip: RoundTrip, objective: Objective, scale: float) -> float:
        """Return the summed loss. The residual stream becomes the gradient of scale * loss.

        The scores of all sequences are known before the gradient of the first: they take almost no memory, and the
        rows that the head reads pass the norm again.
        """
        sweep = trip.sweep
        with self._trained_head(trip) as head:
            scores = self._scores(sweep, head)
            loss, slopes = objective(sweep.batch.supervised(), PerTarget(scores, _NONE))
            done = 0
            for span in sweep.spans:
                rows = sweep.batch.supervised(span.own).rows
                mine = scale * np.asarray(slopes.first)[done : (done := done + len(rows))]
                with sweep.rows(span) as (part, x):
                    head.backward(part, x, rows, mine)
        return loss

    def _scores(self, sweep: Sweep, head: WholeHead) -> Numbers:
        """Return the scores of all last tokens (n, K), in the order of `Batch.supervised`."""
        found = []
        for span in sweep.spans:
            with sweep.rows(span, save=False) as (ctx, x):
                found.append(head.scores(ctx, x, sweep.batch.supervised(span.own).rows))
        return np.concatenate(found)

    @abstractmethod
    def _head(self, ctx: Context, sweep: Sweep) -> AbstractContextManager[WholeHead]:
        """Provide the head for a forward pass."""

    @abstractmethod
    def _trained_head(self, trip: RoundTrip) -> AbstractContextManager[WholeHead]:
        """Provide the head for both passes."""


@dataclass(frozen=True)
class Embeddings(WholeSequences):
    """The loss of embeddings, pooled in this way."""

    pooling: str

    def _head(self, ctx: Context, sweep: Sweep) -> AbstractContextManager[WholeHead]:
        return nullcontext(PooledHead(sweep.model.head, self.pooling))

    def _trained_head(self, trip: RoundTrip) -> AbstractContextManager[WholeHead]:
        return nullcontext(PooledHead(trip.sweep.model.head, self.pooling, trip.sink.head))


@dataclass(frozen=True)
class Scoring(WholeSequences):
    """The loss behind a trained head, which is the layer `layer` of the adapter's values.

    `parameters`: replace the adapter's own values.
    """

    layer: int
    parameters: Parameters | None = None

    @contextmanager
    def _trained_head(self, trip: RoundTrip) -> Iterator[WholeHead]:
        ctx = trip.sweep.ctx
        with (
            ctx.frame(),
            trip.sink.layer(ctx, self.layer) as destination,
            self._head(ctx, trip.sweep, destination["gradients"]) as head,
        ):
            yield head

    @contextmanager
    def _head(self, ctx: Context, sweep: Sweep, gradients: Array | None = None) -> Iterator[WholeHead]:
        """Provide the head with its weight in scratch memory. `gradients` (size,): its gradient is added to it."""
        adapter = sweep.adapter
        assert adapter is not None
        layout = adapter.layout
        with ctx.frame():
            flat = ctx.floats("values of the trained head", layout.size)
            (self.parameters or adapter.parameters).fetch(self.layer, flat, ctx)
            (weight,) = layout.view(self.layer, flat)[SCORE].values()
            collected = None if gradients is None else next(iter(layout.view(self.layer, gradients)[SCORE].values()))
            yield ScoreHead(sweep.model.head, weight, collected)


_NONE = np.empty(0)
