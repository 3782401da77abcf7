"""The final norm, the output head and the cross-entropy, fused and tiled over the vocabulary: logits never exist.

Only supervised tokens reach the head. One pass: a tile's logits update an online softmax, and their exponentials,
still unnormalised, are multiplied with the same rows of the head; the sum is normalised at the end. The target's own
term is left out of that sum and added as (p - 1) W[target], which keeps small gradients exact in bf16.
See docs/derivations/loss.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.backend.protocol import Array, Matrix
from featherback.data.batch import IGNORE
from featherback.layers.context import Context
from featherback.layers.linear import pieces
from featherback.weights.matrix import Matrix as StoredMatrix

ROWS = 256
"""Supervised tokens whose loss is finished at a time."""


class HeadSource(Protocol):
    """Where the rows of the head come from."""

    def rows(self, stored: StoredMatrix, first: int, last: int) -> AbstractContextManager[StoredMatrix]:
        """Rows [first, last), visited in order."""

    def gather(self, stored: StoredMatrix, ids: NDArray[np.int32], out: Array) -> None:
        """out (n, D) = rows `ids`, dequantised."""


@dataclass(frozen=True)
class Softmax:
    """The online softmax's state, one number per supervised token (n,)."""

    reference: Array
    sum: Array
    target_logit: Array

    @classmethod
    def start(cls, ctx: Context, n: int) -> Softmax:
        names = {"softmax reference": -np.inf, "softmax sum": 0.0, "target logits": -np.inf}
        arrays = [ctx.floats(name, n) for name in names]
        for array, value in zip(arrays, names.values()):
            ctx.ops.fill(array, value)
        return cls(*arrays)


@dataclass(frozen=True)
class Head:
    """logits = softcap(rms(x) g W^T). `norm` g (D,), `weight` W (V, D), as stored; `softcap` 0: none."""

    norm: Array
    weight: StoredMatrix
    eps: float
    softcap: float = 0.0

    def loss(self, ctx: Context, x: Array, targets: NDArray[np.int32], source: HeadSource) -> float:
        """The summed cross-entropy (nats) of the final residual stream x (T, D) over supervised targets (T,)."""
        rows = np.flatnonzero(targets != IGNORE)
        if not rows.size:
            return 0.0
        with self._hidden(ctx, x, rows) as hidden:
            softmax = Softmax.start(ctx, len(rows))
            wanted = targets[rows]
            for first, logits, _ in self._logits(ctx, hidden, source):
                ctx.ops.cross_entropy_tile(
                    logits, first, wanted, softmax.reference, softmax.sum, softmax.target_logit,
                    softcap=self.softcap,
                )  # fmt: skip
            return self._finish(ctx, softmax, slice(0, len(rows)), None, None, 1.0)

    def loss_and_gradient(
        self, ctx: Context, x: Array, targets: NDArray[np.int32], source: HeadSource, scale: float
    ) -> float:
        """As `loss`; x (T, D) becomes the gradient of scale * loss with respect to it."""
        rows = np.flatnonzero(targets != IGNORE)
        if not rows.size:
            ctx.ops.fill(x, 0)
            return 0.0
        total = 0.0
        with self._hidden(ctx, x, rows) as hidden:
            softmax = Softmax.start(ctx, len(rows))
            dh = ctx.floats("dhidden", *hidden.shape)
            ctx.ops.fill(dh, 0)
            wanted = targets[rows]
            for first, logits, weight in self._logits(ctx, hidden, source):
                exponentials = ctx.operands("exponentials tile", *logits.shape)
                ctx.ops.cross_entropy_tile(
                    logits, first, wanted, softmax.reference, softmax.sum, softmax.target_logit, exponentials,
                    dh, softcap=self.softcap,
                )  # fmt: skip
                ctx.ops.linear_backward(exponentials, weight, dh, accumulate=True)
            for start, stop in pieces(len(rows), ROWS):
                part, chosen = slice(start, stop), rows[start:stop]
                with ctx.frame():
                    target_rows = ctx.floats("target rows", stop - start, x.shape[1])
                    source.gather(self.weight, wanted[part], target_rows)
                    total += self._finish(ctx, softmax, part, target_rows, dh[part], scale)
                    # hidden = rms(x) g: the rows of x are read one last time, then hold their gradient
                    before, gradient = target_rows, ctx.floats("gradient rows", stop - start, x.shape[1])
                    ctx.ops.take_rows(x, chosen, before)
                    ctx.ops.fill(gradient, 0)
                    ctx.ops.rms_norm_backward(dh[part], before, self.norm, self.eps, gradient)
                    ctx.ops.put_rows(gradient, chosen, x)
        ctx.ops.zero_rows(x, np.flatnonzero(targets == IGNORE))
        return total

    def logits(self, ctx: Context, x: Array, out: Array) -> None:
        """out (T, V) from the final residual stream x (T, D)."""
        with ctx.frame():
            hidden = ctx.operands("hidden", *x.shape)
            ctx.ops.rms_norm(x, self.norm, self.eps, hidden)
            ctx.ops.linear(hidden, ctx.backend.matrix(self.weight), out)
            if self.softcap:
                ctx.ops.softcap(out, self.softcap)

    def _finish(
        self, ctx: Context, softmax: Softmax, rows: slice, target_rows: Array | None, dh: Array | None,
        scale: float,
    ) -> float:  # fmt: skip
        """The summed loss of some rows (nats); dh, if given, is completed in place."""
        with ctx.frame():
            loss = ctx.floats("loss", rows.stop - rows.start)
            ctx.ops.cross_entropy_finish(
                softmax.reference[rows], softmax.sum[rows], softmax.target_logit[rows], loss, target_rows, dh,
                scale, softcap=self.softcap,
            )  # fmt: skip
            return ctx.ops.total(loss)

    @contextmanager
    def _hidden(self, ctx: Context, x: Array, rows: NDArray[np.intp]) -> Iterator[Array]:
        """The normed supervised rows (n, D), an operand."""
        with ctx.frame():
            hidden = ctx.operands("hidden", len(rows), x.shape[1])
            for start, stop in pieces(len(rows), ROWS):
                with ctx.frame():
                    source = ctx.floats("rows of the residual stream", stop - start, x.shape[1])
                    ctx.ops.take_rows(x, rows[start:stop], source)
                    ctx.ops.rms_norm(source, self.norm, self.eps, hidden[start:stop])
            yield hidden

    def _logits(self, ctx: Context, hidden: Array, source: HeadSource) -> Iterator[tuple[int, Array, Matrix]]:
        """(first column, logits (n, tile), rows of the head), a vocabulary tile at a time."""
        for first, last in pieces(self.weight.rows, ctx.vocab_tile):
            with source.rows(self.weight, first, last) as part, ctx.frame():
                weight = ctx.backend.matrix(part)
                logits = ctx.floats("logits tile", len(hidden), last - first)
                ctx.ops.linear(hidden, weight, logits)
                yield first, logits, weight
