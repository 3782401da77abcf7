"""Perturbed weights, for zeroth-order methods: a pass computes with theta + m in place of the stored theta.

The stored weights do not change. A few rows of a matrix at a time are dequantised to scratch memory, m is added to
them, and the product reads the sum.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from featherback.engine.backend.protocol import Array, Int32, Matrix
from featherback.nn.context import Context

TILE = 1 << 18
"""Maximum number of values of a weight that are perturbed at once: the size of the scratch array."""


class WeightPart(NamedTuple):
    """A weight, with the row and column at which a part of it begins."""

    part: str
    layer: int | None = None
    row: int = 0
    col: int = 0


def product(
    ctx: Context, x: Array, weight: Matrix, spot: WeightPart, out: Array, *, bias: Array | None = None,
    accumulate: bool = False,
) -> None:  # fmt: skip
    """out (T, N) (+)= x (T, K) W^T + bias, where W (N, K) = theta + m if this weight is perturbed, else theta."""
    perturbations = ctx.perturbations
    if perturbations is None or not perturbations.affects(spot.part, spot.layer):
        ctx.ops.linear(x, weight, out, bias=bias, accumulate=accumulate)
        return
    rows, cols = weight.shape
    height = max(1, TILE // cols)
    for first, last in ctx.tiles(rows, height):
        with ctx.frame():
            tile = ctx.floats("weights, perturbed", last - first, cols)
            ctx.ops.dequantize(weight.slice(rows=(first, last)), tile)
            perturbations.add(spot.part, spot.layer, (spot.row + first, spot.col), tile)
            part = None if bias is None else bias[first:last]
            ctx.ops.linear(x, ctx.ops.dense(tile), out[:, first:last], bias=part, accumulate=accumulate)


def vector(ctx: Context, value: Array, spot: WeightPart, divisor: float = 1.0) -> Array:
    """Return a norm's weight or a bias (n,): `value` itself, or theta + m in the current frame if it is perturbed.

    `value` is theta / divisor. The result is (theta + m) / divisor.
    """
    perturbations = ctx.perturbations
    if perturbations is None or not perturbations.affects(spot.part, spot.layer):
        return value
    found = ctx.floats(f"{spot.part}, perturbed", *value.shape)
    ctx.ops.cast(value, found)
    ctx.ops.scale(found, divisor)
    perturbations.add(spot.part, spot.layer, (spot.row, spot.col), found.reshape(1, prod(found.shape)))
    ctx.ops.scale(found, 1 / divisor)
    return found


def table_rows(ctx: Context, ids: Int32, spot: WeightPart, x: Array) -> None:
    """x (T, D), rows `ids` (T,) of a table, += these rows of m, if the table is perturbed."""
    perturbations = ctx.perturbations
    if perturbations is not None and perturbations.affects(spot.part, spot.layer):
        for number, row in enumerate(ids.tolist()):
            perturbations.add(spot.part, spot.layer, (row, 0), x[number : number + 1])
