"""A branch made up for tests: only some tokens pass its matrices, and which depends on values."""

from __future__ import annotations

from typing import Any

import numpy as np

from featherback.engine.backend.protocol import Array
from featherback.nn.branch import Branch
from featherback.nn.context import Context
from featherback.nn.kept import NOTHING, Intermediate, Kept
from featherback.nn.linear import BlockWeights


class Picked(Branch):
    """y = x + [x_0 > limit] lin_out(lin_in(x)). In fp32, where the checkpoint picks the same tokens again."""

    def __init__(self, inward: str, outward: str, size: int, width: int, limit: float) -> None:
        self.inward, self.outward, self.size, self.width, self.limit = inward, outward, size, width, limit
        self.projections, self.vectors = {inward: (size, width), outward: (width, size)}, {}
        self.input, self.output = "picked in", "picked out"
        self.intermediates, self.bundles = {self.output: Intermediate(width)}, []

    def forward(self, ctx: Context, x: Array, w: BlockWeights, carry: None = None, kept: Kept = NOTHING) -> Any:
        rows = ctx.backend.most(lambda: np.flatnonzero(x[:, 0] > self.limit), np.arange(ctx.tokens))
        read, z = ctx.operands("picked", len(rows), self.width), ctx.operands("z", len(rows), self.size)
        ctx.ops.take_rows(x, rows, read)
        if len(rows):
            w.projections[self.inward].run(ctx, read, z)
        return rows, read, z

    def add_output(self, ctx: Context, state: Any, x: Array, w: BlockWeights) -> None:
        rows, _, z = state
        with ctx.frame():
            out = ctx.floats("picked, out", len(rows), self.width)
            if len(rows):
                w.projections[self.outward].run(ctx, z, out)
                ctx.ops.add_rows(out, rows.astype(np.int32), x)

    def recompute(self, ctx: Context, x: Array, w: BlockWeights, carry: None = None, kept: Kept = NOTHING) -> Any:
        return self.forward(ctx, x, w)

    def backward(self, ctx: Context, dy: Array, x: Array, state: Any, w: BlockWeights, carry: None) -> None:
        rows, read, z = state
        with ctx.frame():
            d_out, dz = ctx.operands("d out", len(rows), self.width), ctx.operands("dz", len(rows), self.size)
            dx = ctx.floats("dx", len(rows), self.width)
            if len(rows):
                ctx.ops.take_rows(dy, rows, d_out)
                w.projections[self.outward].backward(ctx, z, d_out, dz)
                w.projections[self.inward].backward(ctx, read, dz, dx)
                ctx.ops.add_rows(dx, rows.astype(np.int32), dy)
