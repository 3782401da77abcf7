"""What follows the last block: the loss of the residual stream, and its gradient with respect to it.

A head decides what an objective reads. The model's own head gives log-probabilities of tokens. A head that the adapter
trains gives scores of whole sequences, and a pooled one their embeddings (`methods.scoring`).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from featherback.data.batch import Targets
from featherback.engine.backend.protocol import Array
from featherback.errors import FeatherbackError
from featherback.methods.assembly import Parameters
from featherback.methods.scoring import Embeddings, Scoring
from featherback.methods.sweep import RoundTrip, Sweep
from featherback.nn.loss import HeadSink
from featherback.nn.objectives.base import Objective, PerTarget
from featherback.nn.softmax import placed


class Ending(Protocol):
    """A head with the loss behind it."""

    def loss(self, sweep: Sweep, objective: Objective) -> float:
        """Return the summed loss (nats)."""

    def gradient(self, trip: RoundTrip, objective: Objective, scale: float) -> float:
        """Return the summed loss (nats). The residual stream becomes the gradient of scale * loss."""


def loss(sweep: Sweep, objective: Objective, parameters: Parameters | None = None) -> float:
    """Return the summed loss (nats) of the residual stream. `parameters`: replace the adapter's own values."""
    return _ending(sweep, objective, parameters).loss(sweep, objective)


def loss_gradient(trip: RoundTrip, objective: Objective, scale: float) -> float:
    """Return the summed loss (nats). The residual stream becomes the gradient of scale * loss."""
    return _ending(trip.sweep, objective).gradient(trip, objective, scale)


def _ending(sweep: Sweep, objective: Objective, parameters: Parameters | None = None) -> Ending:
    """Return the head that the adapter trains, or the model's own. Raises FeatherbackError if it does not fit."""
    if objective.pooling is not None:
        return Embeddings(objective.pooling)
    layer = None if sweep.adapter is None else sweep.adapter.layout.head
    if (layer is None) != (objective.scores is None):
        raise FeatherbackError(
            "The objective needs an adapter with a trained head, and this adapter has none."
            if layer is None
            else "The adapter ends in a head that scores whole texts, so it has no next-token loss."
        )
    return Vocabulary() if layer is None else Scoring(layer, parameters)


class Vocabulary:
    """The model's own head, which gives log-probabilities of tokens."""

    def loss(self, sweep: Sweep, objective: Objective) -> float:
        total, found = 0.0, []
        for span in sweep.spans:
            targets = sweep.batch.supervised(span.own)
            with sweep.rows(span, save=False) as (ctx, x):
                found.append(
                    sweep.model.head.log_probs(
                        ctx,
                        x,
                        targets,
                        sweep.resources.weights,
                        over_vocabulary=objective.over_vocabulary,
                        temperature=objective.further_temperature,
                    )
                )
            if not objective.whole_batch:
                total += objective(targets, found.pop())[0]
        return objective(sweep.batch.supervised(), PerTarget.joined(found))[0] if found else total

    def gradient(self, trip: RoundTrip, objective: Objective, scale: float) -> float:
        return token_gradient(trip.sweep, objective, scale, trip.sink.head)


def token_gradient(sweep: Sweep, objective: Objective, scale: float, sink: HeadSink | None) -> float:
    """Return the summed loss (nats). The residual stream becomes the gradient of scale * loss."""
    if objective.whole_batch and len(sweep.spans) > 1:
        return _scaled_afterwards(sweep, objective, scale)
    total, source = 0.0, sweep.resources.weights
    for span in sweep.spans:
        targets = sweep.batch.supervised(span.own)

        def score(logp: PerTarget, targets: Targets = targets) -> PerTarget:
            nonlocal total
            loss, slopes = objective(targets, logp)
            total += loss
            return slopes.times(scale)

        with sweep.rows(span) as (ctx, x):
            sweep.model.head.gradient(
                ctx,
                x,
                targets,
                source,
                score,
                over_vocabulary=objective.over_vocabulary,
                temperature=objective.further_temperature,
                sink=sink,
            )
    return total


def _scaled_afterwards(sweep: Sweep, objective: Objective, scale: float) -> float:
    """Do the same for objectives whose row gradients are only known after all spans have passed the head.

    The head first writes the rows' unscaled gradients to the residual stream, and those of further targets to separate
    arrays. Once the scales are known, the rows are scaled and the arrays are added.
    """
    assert not objective.over_vocabulary
    head, source = sweep.model.head, sweep.resources.weights
    parts = [sweep.batch.supervised(span.own) for span in sweep.spans]
    found: list[PerTarget] = []
    with sweep.ctx.frame():
        apart: list[Array | None] = []
        for span, targets in zip(sweep.spans, parts):
            count = len(targets.further_rows)
            name = "gradients of further targets"
            apart.append(sweep.ctx.floats(name, count, head.weight.cols) if count else None)
            with sweep.rows(span) as (ctx, x):
                head.gradient(ctx, x, targets, source, found.append, apart=apart[-1])
        loss, slopes = objective(sweep.batch.supervised(), PerTarget.joined(found))
        for span, targets, beside, mine in zip(sweep.spans, parts, apart, slopes.times(scale).split_by_span(found)):
            factors = np.zeros(span.tokens)
            factors[targets.rows] = -mine.first
            np.subtract.at(factors, places := targets.rows[targets.further_rows], mine.further)
            with sweep.rows(span) as (ctx, dx):
                ctx.ops.scale_rows(dx, placed(ctx, factors, span.tokens))
                if beside is not None:
                    weights = placed(ctx, mine.further, len(places))
                    ctx.ops.add_rows(beside, places.astype(np.int32), dx, factors=weights)
    return loss
