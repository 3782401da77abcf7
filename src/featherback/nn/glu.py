"""The gated unit (MLP), a branch of a block, by tiles of F: nothing of size T x F exists (docs/derivations/mlp.md).

Forward:   n = rms(m) g, or m;   a = act(gate(n)) * up(n);   y = m + down(a), or m + rms(down(a)) g'
A tile is columns [f0, f1) of F: rows of gate and up, columns of down, and the matching slices of their adapters.
All T tokens of a span go through a tile together, so every weight is unpacked once per span.

Memory: n, d_out, dn (T, D) and the sums of h and dh (T, r) live through the loop over tiles; gate, up, a, da, dgate and
dup (T, f1 - f0) are freed with their tile. There are two exceptions of size (T, F): gate and up that the plan keeps;
and, where the weights themselves are trained, a, dgate and dup, whole, because dW needs them whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from featherback.engine.backend.protocol import Array
from featherback.nn.branch import Branch
from featherback.nn.context import Context
from featherback.nn.kept import NOTHING, Intermediate, Kept
from featherback.nn.linear import BlockWeights, Projection, by_stored, norm_backward, normed, row_ranges, stored_shapes

FLOAT = np.dtype(np.float32)


class GatedState(NamedTuple):
    """No arrays of its own: gate and up are computed tile by tile, where they are used."""

    kept: Kept
    again: bool  # backward pass: kept intermediates are read, not written


class GatedUnit(Branch):
    """The MLP of a block, as a family sets it up.

    `activation`: "silu" or "gelu_tanh". `fused`: the one projection that holds the rows of gate and up. `pre_norm`,
    `post_norm`: names of the norms before and behind it; at least one of them is needed.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        eps: float,
        activation: str = "silu",
        pre_norm: str | None = "post_attention_layernorm",
        post_norm: str | None = None,
        fused: str | None = None,
    ) -> None:
        self.intermediate_size, self.eps, self.activation = intermediate_size, eps, activation
        if pre_norm is None and post_norm is None:  # n may be m, which the products of down_proj would overwrite
            raise ValueError("a gated unit without any norm")
        self.pre_norm, self.post_norm = pre_norm, post_norm
        sizes = {"gate": intermediate_size, "up": intermediate_size}
        self.parts = row_ranges(sizes, fused)
        self.projections = stored_shapes(self.parts, hidden_size) | {"down_proj": (hidden_size, intermediate_size)}
        self.vectors: dict[str, tuple[int, ...]] = {name: (hidden_size,) for name in (pre_norm, post_norm) if name}
        self.input, self.output = "m", "mlp_out"
        self.intermediates = {name: Intermediate(size, ("operand", "blocks8")) for name, size in sizes.items()}
        self.intermediates["mlp_out"] = Intermediate(hidden_size)
        self.bundles = [(name,) for name in (*sizes, *(["mlp_out"] if post_norm else []))]

    def forward(self, ctx: Context, m: Array, w: BlockWeights, carry: None = None, kept: Kept = NOTHING) -> GatedState:
        return GatedState(kept, again=False)

    def add_output(self, ctx: Context, state: GatedState, m: Array, w: BlockWeights) -> None:
        """m (T, D), float32, the input, becomes y in place. Intermediates are written where there is room in `kept`."""
        kept, again = state
        with ctx.frame():
            n = normed(ctx, "n2", m, w, self.pre_norm, self.eps)
            if not self._is_apart(w):
                self._sum(ctx, n, w, kept, m, again=again, accumulate=True)
                return
            out = kept.rows("mlp_out", ctx.span) if again else None
            if out is None:
                out = ctx.floats("output of down_proj", *m.shape)
                self._sum(ctx, n, w, kept, out, again=again)
                if not again and (place := kept.rows("mlp_out", ctx.span)) is not None:
                    ctx.ops.cast(out, place)
            if self.post_norm is None:
                ctx.ops.scale_columns(out, None, m, accumulate=True)
            else:
                ctx.ops.rms_norm(out, w.vectors[self.post_norm], self.eps, m, accumulate=True)

    def recompute(
        self, ctx: Context, m: Array, w: BlockWeights, carry: None = None, kept: Kept = NOTHING
    ) -> GatedState:
        """Nothing is computed here, except for MeBP (`ctx.autodiff`).

        Plain autodiff computes the whole branch again, with its unused output, and holds all intermediates (T, F)
        until the caller's frame ends: in the types that `backward` would compute them in, so that the bits are equal.
        """
        if ctx.autodiff:
            held = [name for name in self.intermediates if name != "mlp_out" or self._is_apart(w)]
            kept = Kept(
                {name: ctx.floats(name, ctx.tokens, self.intermediates[name].width) for name in held}
                | {"a": ctx.operands("a", ctx.tokens, self.intermediate_size)}
            )
            y = ctx.floats("y", *m.shape)
            ctx.ops.cast(m, y)
            self.add_output(ctx, GatedState(kept, again=False), y, w)
        return GatedState(kept, again=True)

    def _is_apart(self, w: BlockWeights) -> bool:
        """Whether down(a) (T, D) has an array of its own: a norm follows it, or its adapter reads it."""
        return self.post_norm is not None or w.projections["down_proj"].needs_output

    def backward(
        self, ctx: Context, dy: Array, m: Array, state: GatedState, w: BlockWeights, carry: None = None
    ) -> None:
        """dy (T, D), float32, the gradient of y, becomes the gradient of m in place. m (T, D): float32 or operand.

        Gate and up are computed again tile by tile, unless they are kept. down(a) is computed again only where a norm
        follows it, or its adapter reads it, and only if it is not kept.
        """
        kept = state.kept
        parts, down_proj = {name: rows.of(w) for name, rows in self.parts.items()}, w.projections["down_proj"]
        stored = {name: w.projections[name] for name in by_stored(self.parts, parts)}
        with ctx.frame():
            # Until the end of this frame, all (T, D): n; d_out, the gradient of down(a); dn; and, rarely, down(a).
            n = normed(ctx, "n2", m, w, self.pre_norm, self.eps)
            d_out = ctx.operands("dy, operand", *m.shape)
            self._output_backward(ctx, dy, n, w, kept, d_out)
            out = resummed = None  # down(a), where its adapter reads it below: kept, or summed again from the tiles
            if self.post_norm is None and down_proj.needs_output:
                out = kept.rows("mlp_out", ctx.span)
                if out is None:
                    out = resummed = ctx.floats("output of down_proj", *m.shape)
            dn = dy if self.pre_norm is None else ctx.floats("dn2", *m.shape)
            # (T, r), by stored projection: h of gate and up is complete, and their dh is summed over tiles. The inputs
            # of down come in tiles: its h is the sum, and its dh is complete.
            h = {name: projection.read(ctx, n) for name, projection in stored.items()}
            dh = {name: projection.accumulator(ctx, "dh") for name, projection in stored.items()}
            h_down, dh_down = down_proj.accumulator(ctx, "h"), down_proj.read_backward(ctx, d_out)
            whole: dict[str, Array] = {}  # (T, F), where the weights themselves are trained
            if w.sink is not None:
                shape = (ctx.tokens, self.intermediate_size)
                whole = {name: ctx.operands(name, *shape) for name in ("dgate", "dup", "a")}
            for f0, f1 in ctx.tiles(self.intermediate_size, ctx.mlp_tile):
                down_part = down_proj.inputs(f0, f1)
                tiles = {name: part.outputs(f0, f1) for name, part in parts.items()}
                shape = (ctx.tokens, f1 - f0)
                with ctx.frame():  # frees dg, du: gradients of gate and up (T, f1 - f0)
                    dg, du = (
                        whole[name][:, f0:f1] if whole else ctx.operands(f"{name} tile", *shape)
                        for name in ("dgate", "dup")
                    )
                    with ctx.frame():  # frees gate, up, da, a (T, f1 - f0)
                        gate, up = self._gate_and_up(ctx, n, tiles, h, kept, slice(f0, f1), again=True)
                        da = ctx.floats("da tile", *shape)
                        kept_a = kept.rows("a", ctx.span)
                        place = whole.get("a") if kept_a is None else kept_a
                        a = ctx.operands("a tile", *shape) if place is None else place[:, f0:f1]
                        # a, if anything reads it and it is not there yet: `glu_backward` writes it on its way.
                        missing_a = a if kept_a is None and (whole or down_part.adapter is not None) else None
                        if missing_a is not None and down_part.needs_input:
                            ctx.ops.glu(gate, up, a, self.activation)
                            missing_a = None
                        # y = m + down(a)
                        down_part.backward_input(ctx, d_out, dh_down, a, da)
                        # a = act(gate) * up
                        ctx.ops.glu_backward(da, gate, up, dg, du, self.activation, a=missing_a)
                        down_part.add_read(ctx, a, h_down, dh_down)
                        if resummed is not None:
                            self._add_product(ctx, down_part, a, h_down, resummed, f0, f1)
                        for name, gradient, product in (("gate", dg, gate), ("up", du, up)):
                            tiles[name].collect(ctx, gradient, product)
                            tiles[name].weigh(ctx, gradient)
                    # dn (+)= dg W_g + du W_u. dh is summed here; `backward_read` adds it to dn once it is complete.
                    for name, gradient in (("gate", dg), ("up", du)):
                        part = tiles[name]
                        part.add_read_backward(ctx, gradient, dh[part.name])
                        part.collect_b(ctx, h[part.name], gradient)
                        first = f0 == 0 and name == "gate" and dn is not dy
                        part.backward_input(ctx, gradient, None, n, dn, accumulate=not first)
                        ctx.release(part.weight)
            ctx.release(down_proj.weight)
            if resummed is not None:
                down_proj.finish(ctx, resummed)
            if out is not None:
                down_proj.collect(ctx, dy, out)
            down_proj.collect_b(ctx, down_proj.summed(ctx, h_down, "h"), d_out)
            for name, projection in stored.items():
                projection.backward_read(ctx, dh[name], n, dn)
            if whole:
                down_proj.hand_over(ctx, whole["a"], d_out)
                for name in ("gate", "up"):
                    parts[name].hand_over(ctx, n, whole[f"d{name}"])
            if self.pre_norm is not None:
                norm_backward(ctx, dn, m, w, self.pre_norm, self.eps, dy)

    def _sum(
        self, ctx: Context, n: Array, w: BlockWeights, kept: Kept, out: Array, *,
        again: bool = False, accumulate: bool = False,
    ) -> None:  # fmt: skip
        """out (T, D) (+)= down(act(gate(n)) * up(n)), tile by tile. Intermediates are written where there is room in
        `kept`; with `again` they are read.
        """
        parts, down_proj = {name: rows.of(w) for name, rows in self.parts.items()}, w.projections["down_proj"]
        stored = {name: w.projections[name] for name in by_stored(self.parts, parts)}
        with ctx.frame():
            h = {name: projection.read(ctx, n) for name, projection in stored.items()}
            h_down = down_proj.accumulator(ctx, "h")
            for f0, f1 in ctx.tiles(self.intermediate_size, ctx.mlp_tile):
                down_part = down_proj.inputs(f0, f1)
                tiles = {name: part.outputs(f0, f1) for name, part in parts.items()}
                with ctx.frame():
                    gate, up = self._gate_and_up(ctx, n, tiles, h, kept, slice(f0, f1), again=again)
                    place = kept.rows("a", ctx.span)
                    a = ctx.operands("a tile", ctx.tokens, f1 - f0) if place is None else place[:, f0:f1]
                    ctx.ops.glu(gate, up, a, self.activation)
                    down_part.add_read(ctx, a, h_down)
                    self._add_product(ctx, down_part, a, h_down, out, f0, f1, accumulate)
            ctx.release(down_proj.weight)
            down_proj.finish(ctx, out)

    def _add_product(
        self, ctx: Context, down_part: Projection, a: Array, h_down: Array | None, out: Array, f0: int,
        f1: int, accumulate: bool = False,
    ) -> None:  # fmt: skip
        """out (T, D) (+)= a W^T of a tile of a's columns; with the last tile also h b, since h is complete then."""
        done = down_part.summed(ctx, h_down, "h") if f1 == self.intermediate_size else None
        down_part.product(ctx, a, done, out, accumulate=accumulate or f0 > 0)

    def _gate_and_up(
        self, ctx: Context, n: Array, tiles: Mapping[str, Projection], h: Mapping[str, Array | None],
        kept: Kept, columns: slice, *, again: bool,
    ) -> tuple[Array, Array]:  # fmt: skip
        """A tile of gate and up, (T, columns) each, both float32 or both operands: in `kept`, or in the current frame.

        `again`: kept ones are read, not written. `h` (T, r): what adapters read from n, by stored projection.
        """
        places = {name: kept.rows(name, ctx.span, columns) for name in tiles}
        both = again and all(place is not None for place in places.values())
        values = []
        for name, part in tiles.items():
            place = places[name]
            direct = place is not None and (both or place.dtype == FLOAT)  # computed or read in its kept place
            value = place if direct else ctx.floats(f"{name} tile", ctx.tokens, columns.stop - columns.start)
            if again and name in kept:
                if not direct:
                    kept.load(ctx, name, value, columns)
            else:
                part.forward(ctx, n, h[part.name], value)
                ctx.release(part.weight)
                if name in kept and not direct:
                    kept.store(ctx, name, value, columns)
            values.append(value)
        return values[0], values[1]

    def _output_backward(self, ctx: Context, dy: Array, n: Array, w: BlockWeights, kept: Kept, d_out: Array) -> None:
        """d_out (T, D), an operand, becomes the gradient of down(a) before `finish`, from dy (T, D), the gradient of
        y = m + down(a) or m + rms(down(a)) g'.
        """
        down_proj = w.projections["down_proj"]
        if self.post_norm is None:
            ctx.ops.cast(dy, d_out)
            down_proj.weigh(ctx, d_out)
            return
        with ctx.frame():
            out = kept.rows("mlp_out", ctx.span)
            if out is None:
                out = ctx.floats("output of down_proj", *dy.shape)
                self._sum(ctx, n, w, kept, out, again=True)
            norm_backward(ctx, dy, out, w, self.post_norm, self.eps, d_out, accumulate=False)
            down_proj.collect(ctx, d_out, out)
            down_proj.weigh(ctx, d_out)
