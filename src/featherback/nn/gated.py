"""The products of a unit, gated or not, on given rows with given weights, in tiles of F.

Forward:   out (+)= down(act(gate(n)) * up(n)), or down(act(up(n))) without a gate

A tile is columns [f0, f1) of F: rows of gate and up, columns of down, and the matching slices of their adapters. All
rows go through a tile together, so each weight is unpacked once. The sums of h and dh (T, r) live through the loop over
tiles. gate, up, a, da, dgate and dup (T, f1 - f0) are freed with their tile. Two exceptions have size (T, F): gate and
up if the plan keeps them; and a, dgate and dup where the weights themselves are trained, because dW needs them whole.

If an encoding keeps only slopes of up (ReGELU2), `backward` needs no up: dup = da * slope. It is used only where
nothing reads a or up themselves: down has no adapter, and no adapter reads the product up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from featherback.engine.backend.protocol import Array
from featherback.nn.context import Context
from featherback.nn.kept import NOTHING, Kept
from featherback.nn.linear import BlockWeights, Projection, Rows, by_stored

FLOAT = np.dtype(np.float32)


class GatedWeights(NamedTuple):
    """The weights of a unit: a dense one, or one expert."""

    parts: Mapping[str, Projection]  # "gate" and "up" (F, D), or only "up"
    down: Projection  # (D, F)
    stored: Mapping[str, Projection]  # the projections that hold the parts; parts of one share its h

    @property
    def summed(self) -> Projection:
        """down without its bias, which is added once all tiles are summed."""
        return self.down._replace(bias=None)

    @classmethod
    def of(cls, w: BlockWeights, parts: Mapping[str, Rows], down: str) -> GatedWeights:
        """Return the weights of a block's unit. `parts`: the rows of gate and up. `down`: the projection."""
        stored = {name: w.projections[name] for name in by_stored(parts, parts)}
        return cls({name: rows.of(w) for name, rows in parts.items()}, w.projections[down], stored)


class Gated:
    """out = down(act(gate(n)) * up(n)), or down(act(up(n))) if the weights have no gate.

    `size` is F. `activation`: one that `glu` of the backend knows.
    """

    def __init__(self, size: int, activation: str) -> None:
        self.size, self.activation = size, activation

    def forward(
        self, ctx: Context, n: Array, w: GatedWeights, out: Array, kept: Kept = NOTHING, *,
        again: bool = False, accumulate: bool = False,
    ) -> None:  # fmt: skip
        """out (T, D) (+)= the unit's output, tile by tile. n (T, D) is an operand.

        Intermediates are written to `kept`, where it has arrays for them; with `again` they are read.
        """
        with ctx.frame():
            h = {name: projection.read(ctx, n) for name, projection in w.stored.items()}
            h_down = w.down.accumulator(ctx, "h", len(n))
            for f0, f1 in ctx.tiles(self.size, ctx.mlp_tile):
                down_part = w.summed.inputs(f0, f1)
                tiles = {name: part.outputs(f0, f1) for name, part in w.parts.items()}
                with ctx.frame():
                    products = self.products(ctx, n, tiles, h, kept, slice(f0, f1), again=again)
                    place = kept.rows("a", ctx.span)
                    a = ctx.operands("a tile", len(n), f1 - f0) if place is None else place[:, f0:f1]
                    ctx.ops.glu(*_gate_and_up(products), a, self.activation)
                    down_part.add_read(ctx, a, h_down)
                    self._add_product(ctx, down_part, a, h_down, out, f0, f1, accumulate)
            ctx.release(w.down.weight)
            w.down.add_bias(ctx, out)
            w.down.finish(ctx, out)

    def backward(
        self, ctx: Context, n: Array, d_out: Array, dn: Array, w: GatedWeights, kept: Kept = NOTHING, *,
        accumulate: bool = False, resummed: Array | None = None, dots: Array | None = None,
        factors: Array | None = None, finished: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """dn (T, D) (+)= the gradient of n, from d_out (T, D), an operand, the gradient of down(a) before `finish`.

        Gate and up are computed again tile by tile, unless they are kept. `resummed` (T, D): receives down(a), summed
        from the tiles again, if its adapter reads it. `finished` is called once it is complete. `dots` (T,), float32:
        d_out . down(a) is added, without W's bias. `factors` (T,): the rows of down(a) were multiplied by them, and
        d_out is the gradient of the product.
        """
        # (T, r), by stored projection. h of gate and up is complete; their dh is summed over tiles. down reads its
        # input tile by tile: its h is the sum, and its dh is complete.
        h = {name: projection.read(ctx, n) for name, projection in w.stored.items()}
        dh = {name: projection.accumulator(ctx, "dh", len(n)) for name, projection in w.stored.items()}
        h_down, dh_down = w.down.accumulator(ctx, "h", len(n)), w.down.read_backward(ctx, d_out)
        dh_weighted = dh_down if dh_down is None or factors is None else self._weighted(ctx, dh_down, factors)
        whole: dict[str, Array] = {}  # (T, F), if the weights themselves are trained
        if w.down.sink is not None:
            whole = {name: ctx.operands(name, len(n), self.size) for name in (*(f"d{part}" for part in w.parts), "a")}
        # Whether anything reads a. Without a reader of a or up, slopes suffice if they are kept.
        needs_a = bool(whole) or w.down.adapter is not None or dots is not None
        by_slopes = kept.has_slopes("up") and not needs_a and factors is None and not w.parts["up"].needs_output
        for f0, f1 in ctx.tiles(self.size, ctx.mlp_tile):
            down_part, columns = w.summed.inputs(f0, f1), slice(f0, f1)
            tiles = {name: part.outputs(f0, f1) for name, part in w.parts.items()}
            shape = (len(n), f1 - f0)
            with ctx.frame():  # frees the gradients of gate and up (T, f1 - f0)
                gradients = {
                    name: whole[f"d{name}"][:, columns] if whole else ctx.operands(f"d{name} tile", *shape)
                    for name in w.parts
                }
                with ctx.frame():  # frees gate, up, da, a (T, f1 - f0)
                    if by_slopes:
                        # y = m + down(a), a = act(up)
                        da = ctx.floats("da tile", *shape)
                        down_part.backward_input(ctx, d_out, None, None, da)
                        kept.backward(ctx, "up", da, gradients["up"], columns)
                        self.input_backward(ctx, tiles, gradients, n, h, dh, dn, begun=f0 > 0 or accumulate)
                        continue
                    products = self.products(ctx, n, tiles, h, kept, columns, again=True)
                    gate, up = _gate_and_up(products)
                    da = ctx.floats("da tile", *shape)
                    kept_a = kept.rows("a", ctx.span)
                    place = whole.get("a") if kept_a is None else kept_a
                    a = ctx.operands("a tile", *shape) if place is None else place[:, f0:f1]
                    # a, if it is read and does not exist yet: `glu_backward` can write it in passing.
                    missing_a = a if kept_a is None and needs_a else None
                    if missing_a is not None and (down_part.needs_input or dots is not None):
                        ctx.ops.glu(gate, up, a, self.activation)
                        missing_a = None
                    # y = m + down(a)
                    down_part.backward_input(ctx, d_out, dh_down, a, da)
                    if dots is not None:  # d_out . down(a) = da . a
                        ctx.ops.row_dots(da, a, dots, accumulate=True)
                    if factors is not None:
                        ctx.ops.scale_rows(da, factors)
                    # a = act(gate) * up
                    ctx.ops.glu_backward(da, gate, up, *_gate_and_up(gradients), self.activation, a=missing_a)
                    down_part.add_read(ctx, a, h_down, dh_weighted)
                    if resummed is not None:
                        self._add_product(ctx, down_part, a, h_down, resummed, f0, f1)
                    for name, gradient in gradients.items():
                        tiles[name].finish_backward(ctx, gradient, products[name])
                self.input_backward(ctx, tiles, gradients, n, h, dh, dn, begun=f0 > 0 or accumulate)
        ctx.release(w.down.weight)
        if resummed is not None:
            w.down.add_bias(ctx, resummed)
            w.down.finish(ctx, resummed)
        finished()
        if h_down is not None and factors is not None:  # down(a) = ... + h b, so db = h^T (factors d_out)
            ctx.ops.scale_rows(h_down, factors)
        w.down.collect_b(ctx, w.down.summed(ctx, h_down, "h"), d_out)
        for name, projection in w.stored.items():
            projection.backward_read(ctx, dh[name], n, dn)
        if whole:
            w.down.give_to_sink(ctx, whole["a"], d_out)
            for name, part in w.parts.items():
                part.give_to_sink(ctx, n, whole[f"d{name}"])

    def input_backward(
        self, ctx: Context, tiles: Mapping[str, Projection], gradients: Mapping[str, Array], n: Array,
        h: Mapping[str, Array | None], dh: Mapping[str, Array | None], dn: Array, *, begun: bool,
    ) -> None:  # fmt: skip
        """dn (T, D) (+)= dg W_g + du W_u for a tile, from `gradients` (T, f1 - f0), operands after `scale_gradient`.

        `begun`: dn already holds a sum. dh is summed here; `backward_read` adds it to dn once it is complete.
        """
        for number, (name, gradient) in enumerate(gradients.items()):
            part = tiles[name]
            part.add_read_backward(ctx, gradient, dh[part.name])
            part.collect_b(ctx, h[part.name], gradient)
            part.backward_input(ctx, gradient, None, n, dn, accumulate=begun or number > 0)
            ctx.release(part.weight)

    def _weighted(self, ctx: Context, dh: Array, factors: Array) -> Array:
        """Return the rows of dh (T, r) multiplied by `factors` (T,): an operand of the current frame."""
        weighted = ctx.operands("dh of down, weighted", *dh.shape)
        with ctx.frame():
            product = ctx.floats("dh of down, product", *dh.shape)
            ctx.ops.cast(dh, product)
            ctx.ops.scale_rows(product, factors)
            ctx.ops.cast(product, weighted)
        return weighted

    def _add_product(
        self, ctx: Context, down_part: Projection, a: Array, h_down: Array | None, out: Array, f0: int,
        f1: int, accumulate: bool = False,
    ) -> None:  # fmt: skip
        """out (T, D) (+)= a W^T for a tile of a's columns. The last tile also adds h b, because h is complete then."""
        done = down_part.summed(ctx, h_down, "h") if f1 == self.size else None
        down_part.product(ctx, a, done, out, accumulate=accumulate or f0 > 0)

    def products(
        self, ctx: Context, n: Array, tiles: Mapping[str, Projection], h: Mapping[str, Array | None],
        kept: Kept, columns: slice, *, again: bool,
    ) -> dict[str, Array]:  # fmt: skip
        """Return a tile of gate and up, (T, columns) each, both float32 or both operands: in `kept`, or in the current
        frame.

        `again`: kept ones are read, not written; one of which only slopes are kept is computed again. `h` (T, r): what
        adapters read from n, by stored projection.
        """
        places = {name: kept.rows(name, ctx.span, columns) for name in tiles}
        both = again and all(place is not None for place in places.values())
        values = {}
        for name, part in tiles.items():
            place = places[name]
            direct = place is not None and (both or place.dtype == FLOAT)  # computed or read directly in its kept array
            value = place if direct else ctx.floats(f"{name} tile", len(n), columns.stop - columns.start)
            if again and name in kept and not kept.has_slopes(name):
                if not direct:
                    kept.load(ctx, name, value, columns)
            else:
                part.forward(ctx, n, h[part.name], value)
                ctx.release(part.weight)
                if name in kept and not direct and not again:
                    kept.store(ctx, name, value, columns)
            values[name] = value
        return values


def _gate_and_up(arrays: Mapping[str, Array]) -> tuple[Array, Array | None]:
    """Return the arrays of gate and up, as `glu` takes them; without a gate, that of up and None."""
    return (arrays["gate"], arrays["up"]) if "gate" in arrays else (arrays["up"], None)
