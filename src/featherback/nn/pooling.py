"""The embedding of a text: a weighted sum of its tokens' states after the last norm.

    e (S, D) = P n,   n = the normed residual stream;   P: 1 / length for "mean", else 1 at the first or the last token

    dn = P^T de;   dx from dn as in every norm

Tokens pass the norm ROWS at a time. `methods.scoring` runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.protocol import Array
from featherback.nn.context import Context
from featherback.nn.linear import norm_gradient
from featherback.nn.loss import Head, HeadSink
from featherback.nn.objectives.base import Numbers
from featherback.nn.slots import NORM, NORM_BIAS
from featherback.nn.softmax import placed

ROWS = 256
"""Number of tokens that pass the norm at a time."""


class _Shares(NamedTuple):
    """The sparse matrix P of a span: a text and a weight for each token."""

    texts: NDArray[np.int32]  # (T,)
    weights: NDArray[np.float64]  # (T,)


@dataclass(frozen=True)
class PooledHead:
    """Embeddings from the last norm of `base`. `sink`: takes the gradients of the norm; None: they are not wanted."""

    base: Head
    pooling: str
    sink: HeadSink | None = None

    def scores(self, ctx: Context, x: Array, rows: NDArray[np.intp]) -> Numbers:
        """Return the embeddings (S, D), float32, of the texts whose last tokens are `rows` of x (T, D), float32."""
        shares, found = self._shares(ctx, rows), np.empty((len(rows), x.shape[1]), np.float32)
        with ctx.frame():
            sums = ctx.floats("embeddings", *x.shape)[: len(rows)]  # each text has a token at least
            ctx.ops.fill(sums, 0)
            for first, last in ctx.tiles(len(x), ROWS):
                with ctx.frame():
                    states = ctx.floats("states", last - first, x.shape[1])
                    self.base.states(ctx, x[first:last], states)
                    factors = placed(ctx, shares.weights[first:last], last - first)
                    ctx.ops.add_rows(states, shares.texts[first:last], sums, factors=factors)
            with ctx.backend.host(sums) as values:
                found[...] = values
        return found

    def backward(self, ctx: Context, x: Array, rows: NDArray[np.intp], slopes: Numbers) -> None:
        """x (T, D), float32, becomes the gradient of the loss. `slopes` (S, D): its derivative by each embedding."""
        shares, width = self._shares(ctx, rows), x.shape[1]
        with ctx.frame():
            of_sums, of_norm = ctx.floats("gradient of embeddings", *x.shape)[: len(rows)], dict[str, Array]()
            with ctx.backend.host(of_sums, write=True) as values:
                values[...] = self.base.divisor * slopes
            for name in (NORM, *([] if self.base.bias is None else [NORM_BIAS])) if self.sink is not None else ():
                of_norm[name] = ctx.floats(f"gradient of {name}", width)
                ctx.ops.fill(of_norm[name], 0)
            for first, last in ctx.tiles(len(x), ROWS):
                with ctx.frame():
                    part = x[first:last]
                    before, dn = (ctx.floats(name, *part.shape) for name in ("residual stream", "gradient of states"))
                    ctx.ops.cast(part, before)
                    ctx.ops.take_rows(of_sums, shares.texts[first:last], dn)
                    ctx.ops.scale_rows(dn, placed(ctx, shares.weights[first:last], last - first))
                    if of_norm:
                        norm_gradient(ctx, dn, before, self.base.eps, *of_norm.values())
                    ctx.ops.fill(part, 0)
                    self.base.hidden_backward(ctx, dn, before, part)
            if self.sink is not None:
                for name, gradient in of_norm.items():
                    ctx.ops.scale(gradient, 1 / self.base.divisor)  # the gradient of g / c becomes that of g
                    self.sink.vector(ctx, name, gradient)

    def _shares(self, ctx: Context, rows: NDArray[np.intp]) -> _Shares:
        """Return what each token of the span adds to which embedding. A span holds whole texts, unless only the last
        token counts.
        """
        texts, weights = np.zeros(ctx.tokens, np.int32), np.zeros(ctx.tokens)
        if self.pooling == "last":
            texts[rows], weights[rows] = np.arange(len(rows)), 1
            return _Shares(texts, weights)
        lengths = np.diff(ctx.span.cu_q)
        texts[:] = np.repeat(np.arange(len(rows)), lengths)
        if self.pooling == "mean":
            weights[:] = np.repeat(1 / np.maximum(lengths, 1), lengths)
        else:
            weights[ctx.span.cu_q[:-1]] = 1
        return _Shares(texts, weights)
