"""The branches that only encoders have: positions that are learned, and norms between the residual sums.

    Places:   y = x + P[position] + S[0]          P (positions, D), S (segments, D): every token is of the first segment
    Norm:     y = (x - mean) / std g + b          in place of a sum

A block of BERT norms what each sum makes: n = ln(x + f(x)). Here a block begins with the norm of the sum before it, so
that the last sum needs no recomputation: its norm belongs to the next block, and behind the last block to the head.
See docs/derivations/block.md.
"""

from __future__ import annotations

import numpy as np

from featherback.engine.backend.protocol import Array
from featherback.nn.branch import Branch
from featherback.nn.context import Context
from featherback.nn.kept import NOTHING, Intermediate, Kept
from featherback.nn.linear import BlockWeights, bias_of, norm_backward

PLACES, SEGMENTS = "position_table", "segment_table"


class Norm(Branch):
    """A LayerNorm of the residual stream itself. `norm`: the name of its weight; `reads`: the name of its input."""

    def __init__(self, norm: str, reads: str, hidden_size: int, eps: float) -> None:
        self.norm, self.eps = norm, eps
        self.projections = {}
        self.vectors = {norm: (hidden_size,), bias_of(norm): (hidden_size,)}
        self.input, self.output = reads, f"change by {norm}"
        self.intermediates = {self.output: Intermediate(hidden_size)}
        self.bundles = []

    def forward(self, ctx: Context, x: Array, w: BlockWeights, carry: None, kept: Kept = NOTHING) -> None:
        """Compute nothing: `add_output` does."""

    def add_output(self, ctx: Context, state: None, x: Array, w: BlockWeights) -> None:
        """x (T, D), float32, becomes its norm in place."""
        ctx.ops.layer_norm(x, w.vectors[self.norm], w.vectors[bias_of(self.norm)], self.eps, x)

    def recompute(self, ctx: Context, x: Array, w: BlockWeights, carry: None, kept: Kept = NOTHING) -> None:
        """Compute nothing: `backward` reads x."""

    def backward(self, ctx: Context, dy: Array, x: Array, state: None, w: BlockWeights, carry: None) -> None:
        """dy (T, D), float32, becomes dx in place."""
        norm_backward(ctx, dy, x, w, self.norm, self.eps, dy, accumulate=False)


class Places(Branch):
    """Adds the learned vectors of a token's position and of its segment.

    `positions`: rows of the table. `first`: the row of the first token. `segments`: rows of the other table.
    """

    def __init__(self, positions: int, first: int, segments: int, hidden_size: int) -> None:
        self.first = first
        self.projections = {}
        self.vectors = {PLACES: (positions, hidden_size), SEGMENTS: (segments, hidden_size)}
        self.input, self.output = "embeddings", "places"
        self.intermediates = {self.output: Intermediate(hidden_size)}
        self.bundles = []

    def forward(self, ctx: Context, x: Array, w: BlockWeights, carry: None, kept: Kept = NOTHING) -> None:
        """Compute nothing: `add_output` does."""

    def add_output(self, ctx: Context, state: None, x: Array, w: BlockWeights) -> None:
        """x (T, D), float32, += P[position] + S[0]."""
        with ctx.frame():
            rows = ctx.floats("rows of the positions", *x.shape)
            ctx.ops.take_rows(w.vectors[PLACES], self._rows(ctx), rows)
            segment = w.vectors[SEGMENTS][:1].reshape(x.shape[1])
            ctx.ops.scale_columns(rows, None, x, bias=segment, accumulate=True)

    def recompute(self, ctx: Context, x: Array, w: BlockWeights, carry: None, kept: Kept = NOTHING) -> None:
        """Compute nothing: `backward` reads nothing."""

    def backward(self, ctx: Context, dy: Array, x: Array, state: None, w: BlockWeights, carry: None) -> None:
        """dy (T, D), float32, is dx already. The gradients of the tables go to the sink."""
        if w.sink is None:
            return
        for table in (PLACES, SEGMENTS):
            with ctx.frame():
                gradient = ctx.floats(f"gradient of {table}", *self.vectors[table])
                ctx.ops.fill(gradient, 0)
                rows = self._rows(ctx) if table == PLACES else np.zeros(ctx.tokens, np.int32)
                ctx.ops.add_rows(dy, rows, gradient)
                w.sink.vector(ctx, table, gradient.reshape(gradient.shape[0] * gradient.shape[1]))

    def _rows(self, ctx: Context) -> np.ndarray:
        """Return the rows (T,) of the table of positions."""
        return (ctx.span.positions + self.first).astype(np.int32)
