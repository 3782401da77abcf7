"""The decay and the strength of the gated delta rule, for each token and head.

Forward:   decay = A softplus(a + dt),  A = -exp(stored) or the stored number itself;   beta = sigmoid(b)
Backward:  da = ddecay A sigmoid(a + dt),  ddt = sum of da over tokens,  dA = sum of ddecay softplus(a + dt),
           db = dbeta beta (1 - beta)

There are only a few numbers per token, so the host computes them, some rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.protocol import Array
from featherback.errors import FeatherbackError
from featherback.nn.context import Context
from featherback.nn.linear import BlockWeights
from featherback.nn.span import pieces

RATE, STEP = "decay", "dt"
ROWS = 256
"""Tokens that are computed at a time, so that the host's own arrays stay small."""

Float32 = NDArray[np.float32]


class Gates(NamedTuple):
    """The decays, at most 0, and the strengths, between 0 and 1: (T, Hv), float32."""

    decay: Array
    beta: Array


class DeltaGates:
    """The gates of `heads` heads. `log`: the file stores log(-A), as a folder does; a GGUF file stores A."""

    def __init__(self, heads: int, *, log: bool) -> None:
        self.heads, self.log = heads, log
        self.vectors = {RATE: (heads,), STEP: (heads,)}

    def forward(self, ctx: Context, a: Array, b: Array, w: BlockWeights) -> Gates:
        """Return the gates in the current frame, from a and b (T, Hv), float32."""
        gates = Gates(ctx.floats("decay", ctx.tokens, self.heads), ctx.floats("beta", ctx.tokens, self.heads))
        with self._hosted(ctx, w, (a, b), gates) as (rate, step, (from_a, from_b), (decay, beta)):
            for first, last in pieces(ctx.tokens, ROWS):
                decay[first:last] = rate * _softplus(from_a[first:last] + step)
                beta[first:last] = _sigmoid(from_b[first:last])
        return gates

    def backward(
        self, ctx: Context, gradients: Gates, a: Array, b: Array, w: BlockWeights, da: Array, db: Array
    ) -> None:
        """da, db (T, Hv), float32, from the gradients of the gates. Gradients of the stored vectors go to the sink."""
        sums = np.zeros((2, self.heads))
        given = (a, b, *gradients)
        with self._hosted(ctx, w, given, (da, db)) as (rate, step, (from_a, from_b, ddecay, dbeta), (to_a, to_b)):
            for first, last in pieces(ctx.tokens, ROWS):
                z, d, beta = from_a[first:last] + step, ddecay[first:last], _sigmoid(from_b[first:last])
                to_a[first:last] = d * rate * _sigmoid(z)
                to_b[first:last] = dbeta[first:last] * beta * (1 - beta)
                sums += (d * _softplus(z)).sum(0), to_a[first:last].sum(0)
            sums[0] *= rate if self.log else 1
        if w.sink is not None:
            for name, total in zip((RATE, STEP), sums):
                with ctx.frame():
                    gradient = ctx.floats(f"gradient of {name}", self.heads)
                    with ctx.backend.host(gradient, write=True) as out:
                        out[...] = total
                    w.sink.vector(ctx, name, gradient)

    @contextmanager
    def _hosted(
        self, ctx: Context, w: BlockWeights, given: Sequence[Array], wanted: Sequence[Array]
    ) -> Iterator[tuple[Float32, Float32, list[Float32], list[Float32]]]:
        """Yield A and dt (Hv,), the `given` arrays for reading and the `wanted` ones for writing, on the host."""
        with ExitStack() as stack:
            rate, step, *read = [stack.enter_context(ctx.backend.host(each)) for each in (*self._stored(w), *given)]
            written = [stack.enter_context(ctx.backend.host(each, write=True)) for each in wanted]
            yield self._checked(self._rate(rate), w), step, read, written

    def _stored(self, w: BlockWeights) -> tuple[Array, Array]:
        return w.vectors[RATE], w.vectors[STEP]

    def _checked(self, rate: Float32, w: BlockWeights) -> Float32:
        """Return A. Raises FeatherbackError unless it lets states decay."""
        if not (np.isfinite(rate) & (rate <= 0)).all():
            layer = next(iter(w.projections.values())).layer
            raise FeatherbackError(
                f"The decay A of the delta net of layer {layer} holds {rate.max():g}; it must be finite, and not "
                f"positive. The model's file is damaged."
            )
        return rate

    def _rate(self, stored: Float32) -> Float32:
        """Return A (Hv,), which is negative."""
        rate: Float32 = -np.exp(stored) if self.log else stored
        return rate


def _sigmoid(z: Float32) -> Float32:
    found: Float32 = np.reciprocal(1 + np.exp(-np.clip(z, -80, 80)))
    return found


def _softplus(z: Float32) -> Float32:
    """Return log(1 + e^z)."""
    return np.logaddexp(z, np.float32(0))
