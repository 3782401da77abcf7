"""Compute the gradient of an objective with respect to the residual stream after the last block."""

from __future__ import annotations

import numpy as np

from featherback.data.batch import Targets
from featherback.engine.backend.protocol import Array
from featherback.methods.sweep import Sweep
from featherback.nn.loss import HeadSink
from featherback.nn.objectives.base import Objective, PerTarget
from featherback.nn.softmax import placed


def loss_gradient(sweep: Sweep, objective: Objective, scale: float, sink: HeadSink | None = None) -> float:
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
