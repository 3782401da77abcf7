"""Run the trained head of an adapter on the residual stream after the last block: scores, loss and gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from featherback.engine.backend.protocol import Array
from featherback.methods.assembly import Parameters
from featherback.methods.sweep import RoundTrip, Sweep
from featherback.nn.context import Context
from featherback.nn.objectives.base import Numbers, Objective, PerTarget
from featherback.nn.score import SCORE, ScoreHead


@dataclass(frozen=True)
class Scoring:
    """The loss behind a trained head, which is the layer `layer` of the adapter's values.

    `parameters`: replace the adapter's own values.
    """

    layer: int
    parameters: Parameters | None = None

    def loss(self, sweep: Sweep, objective: Objective) -> float:
        """Return the summed loss of the residual stream."""
        with self._head(sweep.ctx, sweep) as head:
            return objective(sweep.batch.supervised(), PerTarget(self._scores(sweep, head), _NONE))[0]

    def gradient(self, trip: RoundTrip, objective: Objective, scale: float) -> float:
        """Return the summed loss. The residual stream becomes the gradient of scale * loss.

        The scores of all sequences are known before the gradient of the first: they take almost no memory, and the
        rows of last tokens pass the norm again.
        """
        sweep, ctx = trip.sweep, trip.sweep.ctx
        with (
            ctx.frame(),
            trip.sink.layer(ctx, self.layer) as destination,
            self._head(ctx, sweep, destination["gradients"]) as head,
        ):
            scores = self._scores(sweep, head)
            loss, slopes = objective(sweep.batch.supervised(), PerTarget(scores, _NONE))
            done = 0
            for span in sweep.spans:
                rows = sweep.batch.supervised(span.own).rows
                mine = scale * np.asarray(slopes.first)[done : (done := done + len(rows))]
                with sweep.rows(span) as (part, x):
                    head.backward(part, x, rows, mine)
        return loss

    def _scores(self, sweep: Sweep, head: ScoreHead) -> Numbers:
        """Return the scores of all last tokens (n, K), in the order of `Batch.supervised`."""
        found = []
        for span in sweep.spans:
            with sweep.rows(span, save=False) as (ctx, x):
                found.append(head.scores(ctx, x, sweep.batch.supervised(span.own).rows))
        return np.concatenate(found)

    @contextmanager
    def _head(self, ctx: Context, sweep: Sweep, gradients: Array | None = None) -> Iterator[ScoreHead]:
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
