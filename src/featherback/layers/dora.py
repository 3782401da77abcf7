"""DoRA (Liu et al., 2024): y = c (x W^T + h B^T) + bias with c = m / n and n_i = ||W_i + s B_i A||.

m is trained; to the gradient n is a constant, as in PEFT. Here is how a layer comes by its c; what `Projection` does
with it stands in `layers/linear.py`. See docs/derivations/dora.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from featherback.backend.protocol import Array
from featherback.layers.context import Context
from featherback.layers.linear import BlockWeights, Magnitude, Pairs, Projection


def weighed(w: BlockWeights, pairs: Pairs, columns: Mapping[str, Array], gradients: Pairs) -> BlockWeights:
    """The weights `w` with the magnitudes of `pairs`; `columns`: c (out,) of each."""
    projections = dict(w.projections)
    for name, pair in pairs.items():
        dm = gradients[name].m if name in gradients else None
        projections[name] = projections[name]._replace(magnitude=Magnitude(pair.m, columns[name], dm))
    return BlockWeights(projections, w.vectors)


def measure_columns(
    ctx: Context, w: BlockWeights, pairs: Pairs, squares: Mapping[str, Array], columns: Mapping[str, Array]
) -> None:
    """columns: c (out,) of each of `pairs`, whose factors `w` has; `squares`: ||W_i||^2 (out,)."""
    for name, pair in pairs.items():
        _measure(ctx, w.projections[name], pair.m, squares[name], columns[name])


def _measure(ctx: Context, projection: Projection, m: Array, squares: Array, c: Array) -> None:
    """n_i^2 = ||W_i||^2 + 2 s B_i . P_i with P = (W + s/2 B A) A^T: a forward pass of A's rows as tokens, at s / 2."""
    lora = projection.lora
    assert lora is not None
    rank = len(lora.a)
    with ctx.frame():
        a, h = ctx.operands("A as tokens", *lora.a.shape), ctx.operands("s/2 A A^T", rank, rank)
        ctx.ops.cast(lora.a, a)
        ctx.ops.lora_in(a, lora.a, h, lora.scale / 2)
        for first, last in ctx.tiles(len(c), ctx.mlp_tile):
            part = projection.outputs(first, last)
            assert part.lora is not None
            with ctx.frame():
                p, dots = ctx.floats("P^T", rank, last - first), ctx.floats("B . P", last - first)
                ctx.ops.linear(a, part.weight, p, h=h, b=part.lora.bt)
                ctx.ops.fill(dots, 0)
                ctx.ops.column_dots(part.lora.bt, p, dots)
                ctx.ops.over_norm(m[first:last], squares[first:last], dots, 2 * lora.scale, c[first:last])
            ctx.release(part.weight)
