"""Weights that a pass reads moved: theta + m in place of theta, as zeroth-order methods ask.

Nothing is written: m is added to a few rows of a matrix, dequantised, on their way to the product.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from featherback.engine.backend.protocol import Array, Int32, Matrix
from featherback.nn.context import Context

TILE = 1 << 18
"""Values of a weight that are moved at once."""


class Spot(NamedTuple):
    """A weight, or the place in it where a part of it begins."""

    part: str
    layer: int | None = None
    row: int = 0
    col: int = 0


def product(
    ctx: Context, x: Array, weight: Matrix, spot: Spot, out: Array, *, bias: Array | None = None,
    accumulate: bool = False,
) -> None:  # fmt: skip
    """out (T, N) (+)= x (T, K) W^T + bias, W (N, K) being the moved weight where it is moved."""
    moves = ctx.moves
    if moves is None or not moves.moves(spot.part, spot.layer):
        ctx.ops.linear(x, weight, out, bias=bias, accumulate=accumulate)
        return
    rows, cols = weight.shape
    height = max(1, TILE // cols)
    for first, last in ctx.tiles(rows, height):
        with ctx.frame():
            tile = ctx.floats("weights, moved", last - first, cols)
            ctx.ops.dequantize(weight.slice(rows=(first, last)), tile)
            moves.add(spot.part, spot.layer, (spot.row + first, spot.col), tile)
            part = None if bias is None else bias[first:last]
            ctx.ops.linear(x, ctx.ops.dense(tile), out[:, first:last], bias=part, accumulate=accumulate)


def vector(ctx: Context, value: Array, spot: Spot, divisor: float = 1.0) -> Array:
    """A norm's weight or a bias (n,), moved where it is: then an array of the current frame.

    `divisor`: what the stored weight was divided by to be used.
    """
    moves = ctx.moves
    if moves is None or not moves.moves(spot.part, spot.layer):
        return value
    moved = ctx.floats(f"{spot.part}, moved", *value.shape)
    ctx.ops.cast(value, moved)
    ctx.ops.scale(moved, divisor)
    moves.add(spot.part, spot.layer, (spot.row, spot.col), moved.reshape(1, prod(moved.shape)))
    ctx.ops.scale(moved, 1 / divisor)
    return moved


def table_rows(ctx: Context, ids: Int32, spot: Spot, x: Array) -> None:
    """x (T, D), rows `ids` (T,) of a table, are moved where that is."""
    moves = ctx.moves
    if moves is not None and moves.moves(spot.part, spot.layer):
        for number, row in enumerate(ids.tolist()):
            moves.add(spot.part, spot.layer, (row, 0), x[number : number + 1])
