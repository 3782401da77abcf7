"""A trained head that scores whole sequences: its input is the last token of each, after the last norm.

    s (n, K) = rms(x) g W^T        W (K, D) is trained and has no bias, as `score` in transformers

    dW = ds^T rms(x) g;   dn = ds W;   dx from dn as in every norm

Only the rows of last tokens pass the norm and the head, ROWS at a time. `methods.scoring` runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.protocol import Array
from featherback.nn.adapters.base import Part, Shape
from featherback.nn.context import Context
from featherback.nn.loss import Head
from featherback.nn.objectives.base import Numbers

SCORE = "score"
"""The name of the head, as in transformers."""
_WEIGHT = "weight"
ROWS = 256
"""Number of last tokens that pass the head at a time."""


def parts(shape: Shape) -> dict[str, Part]:
    """Return the trained tensors of a head of `shape` (K, D) by slot: all of it. Its first values are zeros."""
    return {_WEIGHT: Part(_WEIGHT, shape, shape)}


class _Part(NamedTuple):
    """Some of the last tokens, in the current frame."""

    places: slice  # among all last tokens
    rows: NDArray[np.intp]  # (m,)  among the tokens
    x: Array  # (m, D), float32
    normed: Array  # (m, D), an operand


@dataclass(frozen=True)
class ScoreHead:
    """s = c n W^T, with the last norm n of `base`, whose weights are divided by c. `weight` W (K, D), float32.

    `gradient` (K, D): dW is added to it; None: it is not wanted.
    """

    base: Head
    weight: Array
    gradient: Array | None = None

    def scores(self, ctx: Context, x: Array, rows: NDArray[np.intp]) -> Numbers:
        """Return the scores (n, K) of the rows of x (T, D), float32, the final residual stream."""
        found = np.empty((len(rows), self.weight.shape[0]))
        for part in self._parts(ctx, x, rows):
            scores = ctx.floats("scores", len(part.rows), found.shape[1])
            ctx.ops.lora_in(part.normed, self.weight, scores, self.base.divisor)
            with ctx.backend.host(scores) as values:
                found[part.places] = values
        return found

    def backward(self, ctx: Context, x: Array, rows: NDArray[np.intp], slopes: Numbers) -> None:
        """x (T, D), float32, becomes the gradient of the loss: 0 outside `rows`.

        `slopes` (n, K): the loss's derivative by each score.
        """
        for part in self._parts(ctx, x, rows):
            size = len(part.rows), slopes.shape[1]
            ds, narrow = ctx.floats("gradient of scores", *size), ctx.operands("gradient of scores, narrow", *size)
            with ctx.backend.host(ds, write=True) as values:
                values[...] = self.base.divisor * slopes[part.places]
            ctx.ops.cast(ds, narrow)
            if self.gradient is not None:
                ctx.ops.lora_gradient(narrow, part.normed, self.gradient, accumulate=True)
            dn, dx = (ctx.floats(f"gradient of the last tokens{name}", *part.x.shape) for name in (", normed", ""))
            ctx.ops.linear_backward(narrow, ctx.ops.dense(self.weight), dn)
            ctx.ops.fill(dx, 0)
            self.base.hidden_backward(ctx, dn, part.x, dx)
            ctx.ops.put_rows(dx, part.rows, x)
        ctx.ops.zero_rows(x, np.delete(np.arange(len(x)), rows))

    def _parts(self, ctx: Context, x: Array, rows: NDArray[np.intp]) -> Iterator[_Part]:
        for first, last in ctx.tiles(len(rows), ROWS):
            with ctx.frame():
                size = last - first, x.shape[1]
                before, normed = ctx.floats("last tokens", *size), ctx.operands("last tokens, normed", *size)
                ctx.ops.take_rows(x, rows[first:last], before)
                self.base.hidden(ctx, before, ctx.backend.vector(self.base.norm), normed)
                yield _Part(slice(first, last), rows[first:last], before, normed)
