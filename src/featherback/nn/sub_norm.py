"""Branches with a norm inside, before their last projection, as in BitNet b1.58.

Attention:   y = x + lin_o(rms(o) g'),  o = attention(q, k, v)
Gated unit:  y = m + down(s),  s = rms(a) g',  a = act(gate(n)) * up(n),  n = rms(m) g

Backward:    ds = d lin(s);  da = ds through the norm;  the rest is that of the branch without the norm. For the gated
unit with relu2: dgate = da * up * 2 relu(gate).

Memory: the norm of a needs all F columns of a row, so the gated unit is not computed in tiles throughout, as it is
without the norm. a and s (T, F) are operands, and ds (T, F), which becomes da in place, is float32. They are freed with
the span: chunks shrink them. gate and up still exist only in tiles. Unless the plan keeps them, they are computed twice
in the backward pass: for a, and for the slopes. See docs/derivations/mlp.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from featherback.engine.backend.protocol import Array
from featherback.nn.attention import Attention, AttentionState
from featherback.nn.context import Context
from featherback.nn.glu import GatedUnit
from featherback.nn.kept import Kept, KeptState
from featherback.nn.linear import BlockWeights, by_stored, norm_backward, normed


class SubNormedAttention(Attention):
    """Attention whose output is normed, all heads together, before o_proj. `sub_norm`: the norm's name.

    The other arguments are those of `Attention`.
    """

    def __init__(self, *, sub_norm: str = "attn_sub_norm", **attention: Any) -> None:
        super().__init__(**attention)
        self.sub_norm = sub_norm
        self.vectors[sub_norm] = (self.q_size,)

    def _project_output(
        self, ctx: Context, o: Array, q_raw: Array, w: BlockWeights, out: Array, *, accumulate: bool = False
    ) -> None:
        """out (T, D), float32, (+)= lin_o(rms(o) g')."""
        with ctx.frame():
            s = normed(ctx, "s", o, w, self.sub_norm, self.eps)
            super()._project_output(ctx, s, q_raw, w, out, accumulate=accumulate)

    def _project_output_backward(
        self, ctx: Context, state: AttentionState, dy: Array, w: BlockWeights, do: Array, beside: Array
    ) -> None:
        """do (T, Q), float32, becomes the gradient of o, from dy (T, D), the gradient of lin_o(s), an operand."""
        with ctx.frame():
            s = replace(state, o=normed(ctx, "s", state.o, w, self.sub_norm, self.eps))
            super()._project_output_backward(ctx, s, dy, w, do, beside)
        norm_backward(ctx, do, state.o, w, self.sub_norm, self.eps, do, accumulate=False)


class SubNormedUnit(GatedUnit):
    """A gated unit that norms a (T, F) before down_proj. `sub_norm`: the norm's name.

    The other arguments are those of `GatedUnit`, without `post_norm`.
    """

    def __init__(self, *, sub_norm: str = "ffn_sub_norm", **unit: Any) -> None:
        super().__init__(**unit)
        assert self.post_norm is None
        assert self.pre_norm is not None
        self.sub_norm = sub_norm
        self.vectors[sub_norm] = (self.intermediate_size,)

    def add_output(self, ctx: Context, state: KeptState, m: Array, w: BlockWeights) -> None:
        """m (T, D), float32, the input, becomes y in place.

        Intermediates are written to `kept`, where it has arrays.
        """
        kept, again = state
        down_proj = w.projections["down_proj"]
        with ctx.frame():
            out = kept.rows("mlp_out", ctx.span) if again and down_proj.needs_output else None
            if out is None:
                a = self._activated(ctx, m, w, kept, again=again)
                s = normed(ctx, "s", a, w, self.sub_norm, self.eps)
                if not down_proj.needs_output:
                    down_proj.run(ctx, s, m, accumulate=True)
                    return
                out = ctx.floats("output of down_proj", *m.shape)
                down_proj.run(ctx, s, out)
                if not again and (place := kept.rows("mlp_out", ctx.span)) is not None:
                    ctx.ops.cast(out, place)
            ctx.ops.scale_columns(out, None, m, accumulate=True)

    def backward(
        self, ctx: Context, dy: Array, m: Array, state: KeptState, w: BlockWeights, carry: None = None
    ) -> None:
        """dy (T, D), float32, the gradient of y, becomes the gradient of m in place. m (T, D) is float32 or an operand.

        `kept` holds what the plan keeps of gate, up and down's output.
        """
        kept = state.kept
        with ctx.frame():
            da = ctx.floats("da", ctx.tokens, self.intermediate_size)
            self._down_backward(ctx, dy, m, kept, w, da)
            self._gate_and_up_backward(ctx, dy, m, kept, w, da)

    def _activated(self, ctx: Context, m: Array, w: BlockWeights, kept: Kept, *, again: bool) -> Array:
        """Return a (T, F), an operand of the current frame or in `kept`, computed tile by tile.

        gate and up are written to `kept`, where it has arrays; with `again` they are read.
        """
        a = kept.rows("a", ctx.span)
        if a is not None and again:
            return a
        a = ctx.operands("a", ctx.tokens, self.intermediate_size) if a is None else a
        parts = {name: rows.of(w) for name, rows in self.parts.items()}
        with ctx.frame():
            n = normed(ctx, "n2", m, w, self.pre_norm, self.eps)
            h = {name: w.projections[name].read(ctx, n) for name in by_stored(self.parts, parts)}
            for f0, f1 in ctx.tiles(self.intermediate_size, ctx.mlp_tile):
                tiles = {name: part.outputs(f0, f1) for name, part in parts.items()}
                with ctx.frame():
                    products = self.gated.products(ctx, n, tiles, h, kept, slice(f0, f1), again=again)
                    ctx.ops.glu(products["gate"], products["up"], a[:, f0:f1], self.gated.activation)
        return a

    def _down_backward(self, ctx: Context, dy: Array, m: Array, kept: Kept, w: BlockWeights, da: Array) -> None:
        """da (T, F), float32, becomes the gradient of a, from dy (T, D), float32."""
        down_proj = w.projections["down_proj"]
        with ctx.frame():
            a = self._activated(ctx, m, w, kept, again=True)
            with ctx.frame():
                s = normed(ctx, "s", a, w, self.sub_norm, self.eps)
                out = None
                if down_proj.needs_output:
                    out = kept.rows("mlp_out", ctx.span)
                    if out is None:
                        out = ctx.floats("output of down_proj", *dy.shape)
                        down_proj.run(ctx, s, out)
                down_proj.add_output_backward(ctx, s, out, dy, da)
            norm_backward(ctx, da, a, w, self.sub_norm, self.eps, da, accumulate=False)

    def _gate_and_up_backward(self, ctx: Context, dy: Array, m: Array, kept: Kept, w: BlockWeights, da: Array) -> None:
        """dy (T, D), float32, += the gradient of m through gate and up, from da (T, F), float32."""
        parts = {name: rows.of(w) for name, rows in self.parts.items()}
        stored = {name: w.projections[name] for name in by_stored(self.parts, parts)}
        with ctx.frame():
            n = normed(ctx, "n2", m, w, self.pre_norm, self.eps)
            dn = ctx.floats("dn2", *m.shape)
            h = {name: projection.read(ctx, n) for name, projection in stored.items()}
            dh = {name: projection.accumulator(ctx, "dh", len(n)) for name, projection in stored.items()}
            whole: dict[str, Array] = {}  # (T, F), if the weights themselves are trained
            if w.sink is not None:
                whole = {name: ctx.operands(f"d{name}", *da.shape) for name in parts}
            for f0, f1 in ctx.tiles(self.intermediate_size, ctx.mlp_tile):
                tiles = {name: part.outputs(f0, f1) for name, part in parts.items()}
                with ctx.frame():
                    gradients = {
                        name: whole[name][:, f0:f1] if whole else ctx.operands(f"d{name} tile", ctx.tokens, f1 - f0)
                        for name in parts
                    }
                    with ctx.frame():
                        products = self.gated.products(ctx, n, tiles, h, kept, slice(f0, f1), again=True)
                        pair = (products["gate"], products["up"], gradients["gate"], gradients["up"])
                        ctx.ops.glu_backward(da[:, f0:f1], *pair, self.gated.activation)
                        for name, product in products.items():
                            tiles[name].finish_backward(ctx, gradients[name], product)
                    self.gated.input_backward(ctx, tiles, gradients, n, h, dh, dn, begun=f0 > 0)
            for name, projection in stored.items():
                projection.backward_read(ctx, dh[name], n, dn)
            for name, gradient in whole.items():
                parts[name].give_to_sink(ctx, n, gradient)
            assert self.pre_norm is not None
            norm_backward(ctx, dn, m, w, self.pre_norm, self.eps, dy)
