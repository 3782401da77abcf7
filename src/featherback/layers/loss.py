"""The final norm, the output head and the cross-entropy, fused and tiled over the vocabulary: logits never exist.

Only supervised tokens reach the head. One pass: a tile's logits update an online softmax, and their exponentials,
still unnormalised, are multiplied with the same rows of the head; the sum is normalised at the end. The target's own
term is left out of that sum and added as (p - 1) W[target], which keeps small gradients exact in bf16.
See docs/derivations/loss.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.backend.protocol import Array, Matrix
from featherback.data.batch import IGNORE
from featherback.layers.context import Context
from featherback.layers.linear import norm_gradient
from featherback.layers.moved import Spot, product, vector
from featherback.parameters.roles import HEAD, NORM
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
class HeadPass:
    """What the gradient of the head's weight is computed from, once the loss is known, a tile of the vocabulary at a
    time: as often as it is read, logits are computed again."""

    hidden: Array  # (n, D), an operand: the normed supervised rows
    softmax: Softmax
    targets: NDArray[np.int32]  # (n,)
    scale: float  # of the loss

    def gradient(self, ctx: Context, head: Head, source: HeadSource, height: int) -> Iterator[tuple[slice, Array]]:
        """(rows, their gradient (height or fewer, D)) of scale * loss, in order."""
        n, width = self.hidden.shape
        with ctx.frame():
            shares, pulls = ctx.floats("shares", n), ctx.floats("pulls of the targets", n)
            ctx.ops.softmax_shares(
                self.softmax.reference, self.softmax.sum, self.softmax.target_logit, self.scale, shares, pulls,
                softcap=head.softcap,
            )  # fmt: skip
            weighted, operand = (ctx.floats("hidden, weighted", n, width), ctx.operands("hidden, weighted", n, width))
            ctx.ops.cast(self.hidden, weighted)
            ctx.ops.scale_rows(weighted, shares)
            ctx.ops.cast(weighted, operand)
            again = Softmax.start(ctx, n)
            ctx.ops.cast(self.softmax.reference, again.reference)
            for first, last in ctx.tiles(head.weight.rows, height):
                with ctx.frame():
                    gradient = ctx.floats("gradient of the head, tile", last - first, width)
                    for f, logits, _ in head.logits_of(ctx, self.hidden, source, first, last):
                        p, turned = ctx.operands("p", *logits.shape), ctx.operands("p^T", *logits.shape[::-1])
                        ctx.ops.cross_entropy_tile(
                            logits, f, self.targets, again.reference, again.sum, again.target_logit, p,
                            softcap=head.softcap,
                        )  # fmt: skip
                        ctx.ops.transpose(p, turned)
                        part = gradient[f - first : f - first + logits.shape[1]]
                        ctx.ops.linear_backward(turned, ctx.ops.dense(operand), part)
                    ctx.ops.add_rows(weighted, self.targets - first, gradient, factors=pulls)
                    yield slice(first, last), gradient


class HeadSink(Protocol):
    """Trains the head's weight and the norm before it."""

    def head(self, ctx: Context, done: HeadPass) -> None:
        """The loss is known; the gradient of the head's weight may be read until the step ends."""

    def vector(self, ctx: Context, name: str, gradient: Array) -> None:
        """Of the norm."""


@dataclass(frozen=True)
class Head:
    """logits = softcap(rms(x) g / c W^T). `norm` g / c (D,), `weight` W (V, D), as stored; `softcap` 0: none."""

    norm: Array
    weight: StoredMatrix
    eps: float
    softcap: float = 0.0
    divisor: float = 1.0  # c

    def loss(self, ctx: Context, x: Array, targets: NDArray[np.int32], source: HeadSource) -> float:
        """The summed cross-entropy (nats) of the final residual stream x (T, D) over supervised targets (T,)."""
        rows = np.flatnonzero(targets != IGNORE)
        if not rows.size:
            return 0.0
        with ctx.frame():
            hidden, softmax = self._hidden(ctx, x, rows), Softmax.start(ctx, len(rows))
            wanted = targets[rows]
            for first, logits, _ in self.logits_of(ctx, hidden, source):
                ctx.ops.cross_entropy_tile(
                    logits, first, wanted, softmax.reference, softmax.sum, softmax.target_logit,
                    softcap=self.softcap,
                )  # fmt: skip
            return self._finish(ctx, softmax, slice(0, len(rows)), None, None, 1.0)

    def loss_and_gradient(
        self, ctx: Context, x: Array, targets: NDArray[np.int32], source: HeadSource, scale: float,
        sink: HeadSink | None = None,
    ) -> float:  # fmt: skip
        """As `loss`; x (T, D) becomes the gradient of scale * loss with respect to it.

        With a `sink`, which trains norm and weight, what it needs for that stays in the caller's frame.
        """
        rows = np.flatnonzero(targets != IGNORE)
        if not rows.size:
            ctx.ops.fill(x, 0)
            return 0.0
        with ctx.frame() if sink is None else nullcontext():
            done = HeadPass(self._hidden(ctx, x, rows), Softmax.start(ctx, len(rows)), targets[rows], scale)
            total = self._backward(ctx, x, rows, done, source, sink)
            if sink is not None:
                sink.head(ctx, done)
        ctx.ops.zero_rows(x, np.flatnonzero(targets == IGNORE))
        return total

    def _backward(
        self, ctx: Context, x: Array, rows: NDArray[np.intp], done: HeadPass, source: HeadSource,
        sink: HeadSink | None,
    ) -> float:  # fmt: skip
        """The summed loss (nats); the supervised rows of x become its gradient, and `done` has the softmax."""
        total, hidden, softmax, wanted = 0.0, done.hidden, done.softmax, done.targets
        with ctx.frame():
            dg = None
            if sink is not None:
                dg = ctx.floats("gradient of the norm", *self.norm.shape)
                ctx.ops.fill(dg, 0)
            dh = ctx.floats("dhidden", *hidden.shape)
            ctx.ops.fill(dh, 0)
            for first, logits, weight in self.logits_of(ctx, hidden, source):
                exponentials = ctx.operands("exponentials tile", *logits.shape)
                ctx.ops.cross_entropy_tile(
                    logits, first, wanted, softmax.reference, softmax.sum, softmax.target_logit, exponentials,
                    dh, softcap=self.softcap,
                )  # fmt: skip
                ctx.ops.linear_backward(exponentials, weight, dh, accumulate=True)
            for start, stop in ctx.tiles(len(rows), ROWS):
                part, chosen = slice(start, stop), rows[start:stop]
                with ctx.frame():
                    target_rows = ctx.floats("target rows", stop - start, x.shape[1])
                    source.gather(self.weight, wanted[part], target_rows)
                    total += self._finish(ctx, softmax, part, target_rows, dh[part], done.scale)
                    # hidden = rms(x) g: the rows of x are read one last time, then hold their gradient
                    before, gradient = target_rows, ctx.floats("gradient rows", stop - start, x.shape[1])
                    ctx.ops.take_rows(x, chosen, before)
                    ctx.ops.fill(gradient, 0)
                    if dg is not None:
                        norm_gradient(ctx, dh[part], before, self.eps, dg)
                    ctx.ops.rms_norm_backward(dh[part], before, ctx.backend.vector(self.norm), self.eps, gradient)
                    ctx.ops.put_rows(gradient, chosen, x)
            if sink is not None:
                ctx.ops.scale(dg, 1 / self.divisor)  # of g itself
                sink.vector(ctx, NORM, dg)
        return total

    def logits(self, ctx: Context, x: Array, source: HeadSource, out: Array) -> None:
        """out (T, V) from the final residual stream x (T, D)."""
        with ctx.frame():
            hidden = ctx.operands("hidden", *x.shape)
            ctx.ops.rms_norm(x, ctx.backend.vector(self.norm), self.eps, hidden)
            for first, last in ctx.tiles(self.weight.rows, ctx.vocab_tile):
                with source.rows(self.weight, first, last) as part:
                    ctx.ops.linear(hidden, ctx.backend.matrix(part), out[:, first:last])
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

    def _hidden(self, ctx: Context, x: Array, rows: NDArray[np.intp]) -> Array:
        """The normed supervised rows (n, D), an operand."""
        hidden = ctx.operands("hidden", len(rows), x.shape[1])
        norm = vector(ctx, ctx.backend.vector(self.norm), Spot(NORM), self.divisor)
        for start, stop in ctx.tiles(len(rows), ROWS):
            with ctx.frame():
                source = ctx.floats("rows of the residual stream", stop - start, x.shape[1])
                ctx.ops.take_rows(x, rows[start:stop], source)
                ctx.ops.rms_norm(source, norm, self.eps, hidden[start:stop])
        return hidden

    def logits_of(
        self, ctx: Context, hidden: Array, source: HeadSource, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, Array, Matrix]]:
        """(first column, logits (n, tile), rows of the head) of columns [start, stop) (default: to the last), a tile of
        the vocabulary at a time."""
        for first, last in ctx.tiles(self.weight.rows if stop is None else stop, ctx.vocab_tile, start):
            with source.rows(self.weight, first, last) as part, ctx.frame():
                weight = ctx.backend.matrix(part)
                logits = ctx.floats("logits tile", len(hidden), last - first)
                product(ctx, hidden, weight, Spot(HEAD, row=first), logits)
                yield first, logits, weight
