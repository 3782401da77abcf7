"""The final norm, the output head and the cross-entropy, fused and tiled over the vocabulary: logits never exist.

Only supervised tokens reach the head. One pass: a tile's logits update an online softmax, and their exponentials,
still unnormalised, are multiplied with the same rows of the head; the sum is normalised at the end. The target's own
term is left out of that sum and added as (p - 1) W[target], which keeps small gradients exact in bf16.
See docs/derivations/loss.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.backprop.context import Context
from featherback.backprop.mlp import tiles
from featherback.data.batch import IGNORE
from featherback.host.pager import WeightSource
from featherback.memory.ledger import LOSS_ROWS

Array = NDArray[Any]
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Softmax:
    """The online softmax's state, one number a supervised token (n,)."""

    reference: Float32
    sum: Float32
    target_logit: Float32

    @classmethod
    def start(cls, ctx: Context, n: int) -> Softmax:
        reference, total, target_logit = ctx.floats(n), ctx.floats(n), ctx.floats(n)
        reference.fill(-np.inf)
        total.fill(0)
        target_logit.fill(-np.inf)
        return cls(reference, total, target_logit)

    def finish(self, rows: slice, target_rows: Float32 | None, dh: Float32 | None, scale: float) -> float:
        """The summed loss of some rows (nats); dh, if given, is completed in place."""
        loss = np.empty(rows.stop - rows.start, np.float32)
        kernels.cross_entropy_finish(
            self.reference[rows], self.sum[rows], self.target_logit[rows], loss, target_rows, dh, scale
        )
        return float(loss.sum(dtype=np.float64))


def loss(ctx: Context, x: Float32, targets: NDArray[np.int32], norm: Float32, source: WeightSource) -> float:
    """The summed cross-entropy (nats) of the final residual stream x (T, D) over supervised targets (T,)."""
    rows = np.flatnonzero(targets != IGNORE)
    if not rows.size:
        return 0.0
    with _hidden(ctx, x, rows, norm) as hidden:
        softmax = Softmax.start(ctx, len(rows))
        wanted = targets[rows]
        for first, logits, _ in _logits(ctx, hidden, source):
            kernels.cross_entropy_tile(
                logits, first, wanted, softmax.reference, softmax.sum, softmax.target_logit
            )
        return softmax.finish(slice(0, len(rows)), None, None, 1.0)


def loss_and_gradient(
    ctx: Context, x: Float32, targets: NDArray[np.int32], norm: Float32, source: WeightSource, scale: float
) -> float:
    """As `loss`; x (T, D) becomes the gradient of scale * loss with respect to it."""
    rows = np.flatnonzero(targets != IGNORE)
    if not rows.size:
        x.fill(0)
        return 0.0
    config = ctx.config
    total = 0.0
    with _hidden(ctx, x, rows, norm) as hidden:
        softmax = Softmax.start(ctx, len(rows))
        dh = ctx.floats(len(rows), config.hidden_size)
        dh.fill(0)
        wanted = targets[rows]
        for first, logits, weight in _logits(ctx, hidden, source):
            p = ctx.operands(*logits.shape)
            kernels.cross_entropy_tile(
                logits, first, wanted, softmax.reference, softmax.sum, softmax.target_logit, p, dh
            )
            kernels.linear_backward(p, weight, dh, accumulate=True)
        for start, stop in tiles(len(rows), LOSS_ROWS):
            part, chosen = slice(start, stop), rows[start:stop]
            with ctx.arena.frame():
                target_rows = ctx.floats(stop - start, config.hidden_size)
                source.gather(source.model.lm_head, wanted[part], target_rows)
                total += softmax.finish(part, target_rows, dh[part], scale)
                # hidden = rms(x) g: the rows of x are read one last time, then hold their gradient
                before, gradient = target_rows, ctx.floats(stop - start, config.hidden_size)
                np.take(x, chosen, axis=0, out=before, mode="clip")  # "raise" would copy
                gradient.fill(0)
                kernels.rms_norm_backward(dh[part], before, norm, config.rms_norm_eps, gradient)
                x[chosen] = gradient
    x[targets == IGNORE] = 0
    return total


@contextmanager
def _hidden(ctx: Context, x: Float32, rows: NDArray[np.intp], norm: Float32) -> Iterator[Array]:
    """The normed supervised rows (n, D), an operand."""
    with ctx.arena.frame():
        hidden = ctx.operands(len(rows), ctx.config.hidden_size)
        for start, stop in tiles(len(rows), LOSS_ROWS):
            with ctx.arena.frame():
                source = ctx.floats(stop - start, ctx.config.hidden_size)
                np.take(x, rows[start:stop], axis=0, out=source, mode="clip")  # "raise" would copy
                kernels.rms_norm(source, norm, ctx.config.rms_norm_eps, hidden[start:stop])
        yield hidden


def _logits(
    ctx: Context, hidden: Array, source: WeightSource
) -> Iterator[tuple[int, Float32, kernels.Matrix]]:
    """(first column, logits (n, tile), rows of the head) a vocabulary tile at a time."""
    for first, last in tiles(ctx.config.vocab_size, ctx.vocab_tile):
        with source.rows(source.model.lm_head, first, last) as part, ctx.arena.frame():
            weight = kernels.matrix(part)
            logits = ctx.floats(len(hidden), last - first)
            kernels.linear(hidden, weight, logits)
            yield first, logits, weight
