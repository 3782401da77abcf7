"""The gated half of a block, tiled over F so that nothing of size T x F exists.

Forward:   n = rms(m) g;   a = act(gate(n)) * up(n);   y = m + down(a), or m + rms(down(a)) g'
A tile takes columns [f0, f1) of F: rows of gate and up, columns of down, and the matching slices of their LoRA pairs.
All T tokens of a span go through a tile together, so every weight is unpacked once per span (docs/derivations/mlp.md).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from featherback.backend.protocol import Array
from featherback.layers.context import Context
from featherback.layers.kept import NOTHING, Intermediate, Kept
from featherback.layers.linear import BlockWeights, Projection, add_outer, pieces

FLOAT = np.dtype(np.float32)


class GatedUnit:
    """The MLP of a block, as a family sets it up. `activation`: "silu" or "gelu_tanh"."""

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        eps: float,
        activation: str = "silu",
        pre_norm: str = "post_attention_layernorm",
        post_norm: str | None = None,
    ) -> None:
        self.inner, self.eps, self.activation = intermediate_size, eps, activation
        self.pre_norm, self.post_norm = pre_norm, post_norm
        self.projections = {
            "gate_proj": (intermediate_size, hidden_size),
            "up_proj": (intermediate_size, hidden_size),
            "down_proj": (hidden_size, intermediate_size),
        }
        self.vectors = {pre_norm: (hidden_size,)}
        self.intermediates = {
            "gate": Intermediate(intermediate_size),
            "up": Intermediate(intermediate_size),
        }
        if post_norm:
            self.vectors[post_norm] = (hidden_size,)
            self.intermediates["mlp_out"] = Intermediate(hidden_size)
        self.bundles = [(name,) for name in self.intermediates]

    def forward(self, ctx: Context, m: Array, w: BlockWeights, kept: Kept = NOTHING) -> None:
        """m (T, D) becomes the block's output y in place; what is to be kept is written."""
        with ctx.frame():
            n = ctx.operands("n2", *m.shape)
            ctx.ops.rms_norm(m, w.vectors[self.pre_norm], self.eps, n)
            if self.post_norm is None:
                self._sum(ctx, n, w, kept, m, accumulate=True)
                return
            out = ctx.floats("output of down_proj", *m.shape)
            self._sum(ctx, n, w, kept, out, accumulate=False)
            if (place := kept.rows("mlp_out", ctx.span)) is not None:
                ctx.ops.cast(out, place)
            ctx.ops.rms_norm(out, w.vectors[self.post_norm], self.eps, m, accumulate=True)

    def backward(self, ctx: Context, dy: Array, m: Array, w: BlockWeights, kept: Kept = NOTHING) -> None:
        """dy (T, D), the gradient of y, becomes the gradient of m (T, D), float32 or operand, in place.

        Gate and up are computed again tile by tile unless they are kept. The products of down_proj are done again only
        where a norm follows them and its input was not kept.
        """
        gate_proj, up_proj, down_proj = (w.projections[f"{name}_proj"] for name in ("gate", "up", "down"))
        with ctx.frame():
            n, d_out = ctx.operands("n2", *m.shape), ctx.operands("dy, operand", *m.shape)
            ctx.ops.rms_norm(m, w.vectors[self.pre_norm], self.eps, n)
            self._output_backward(ctx, dy, n, w, kept, d_out)
            dn = ctx.floats("dn2", *m.shape)
            h = {"gate": gate_proj.lora_in(ctx, n), "up": up_proj.lora_in(ctx, n)}
            dh = {"gate": gate_proj.accumulator(ctx, "dh"), "up": up_proj.accumulator(ctx, "dh")}
            h_down, dh_down = down_proj.accumulator(ctx, "h"), down_proj.lora_in_backward(ctx, d_out)
            for f0, f1 in pieces(self.inner, ctx.mlp_tile):
                gate_part, up_part = gate_proj.outputs(f0, f1), up_proj.outputs(f0, f1)
                down_part = down_proj.inputs(f0, f1)
                shape = (ctx.tokens, f1 - f0)
                with ctx.frame():
                    dg, du = ctx.operands("dgate tile", *shape), ctx.operands("dup tile", *shape)
                    with ctx.frame():
                        g, u = self._recall(ctx, n, {"gate": gate_part, "up": up_part}, h, kept, (f0, f1))
                        da = ctx.floats("da tile", *shape)
                        kept_a = kept.rows("a", ctx.span)
                        a = ctx.operands("a tile", *shape) if kept_a is None else kept_a[:, f0:f1]
                        # y = m + a W^T + (s a A^T) B^T
                        down_part.backward_input(ctx, d_out, dh_down, da)
                        # a = act(g) * u
                        again = a if kept_a is None and down_part.lora is not None else None
                        ctx.ops.glu_backward(da, g, u, dg, du, self.activation, a=again)
                        down_part.add_lora_in(ctx, a, h_down)
                        if down_part.lora is not None:
                            add_outer(ctx, dh_down, a, down_part.lora.da)
                    # g = n W^T + h B^T: dn (+)= dg W, dh += s dg B, dB^T += h^T dg. dh A comes once dh is complete.
                    for name, part, gradient in (("gate", gate_part, dg), ("up", up_part, du)):
                        part.add_lora_in_backward(ctx, gradient, dh[name])
                        if part.lora is not None:
                            add_outer(ctx, h[name], gradient, part.lora.dbt)
                        first = f0 == 0 and name == "gate"
                        part.backward_input(ctx, gradient, None, dn, accumulate=not first)
                        ctx.release(part.weight)
            ctx.release(down_proj.weight)
            if down_proj.lora is not None:
                add_outer(ctx, down_proj.finished(ctx, h_down, "h"), d_out, down_proj.lora.dbt)
            gate_proj.backward_lora_in(ctx, dh["gate"], n, dn)
            up_proj.backward_lora_in(ctx, dh["up"], n, dn)
            ctx.ops.rms_norm_backward(dn, m, w.vectors[self.pre_norm], self.eps, dy)

    def _sum(
        self, ctx: Context, n: Array, w: BlockWeights, kept: Kept, out: Array, *, accumulate: bool
    ) -> None:
        """out (T, D) (+)= down(act(gate(n)) * up(n))."""
        gate_proj, up_proj, down_proj = (w.projections[f"{name}_proj"] for name in ("gate", "up", "down"))
        with ctx.frame():
            h = {"gate": gate_proj.lora_in(ctx, n), "up": up_proj.lora_in(ctx, n)}
            h_down = down_proj.accumulator(ctx, "h")
            for f0, f1 in pieces(self.inner, ctx.mlp_tile):
                down_part = down_proj.inputs(f0, f1)
                shape = (ctx.tokens, f1 - f0)
                with ctx.frame():
                    values: dict[str, Array] = {}
                    for name, projection in (("gate", gate_proj), ("up", up_proj)):
                        part, place = projection.outputs(f0, f1), kept.rows(name, ctx.span)
                        place = None if place is None else place[:, f0:f1]
                        direct = place is not None and place.dtype == FLOAT
                        value = place if direct else ctx.floats(f"{name} tile", *shape)
                        part.forward(ctx, n, h[name], value)
                        ctx.release(part.weight)
                        if place is not None and not direct:
                            ctx.ops.cast(value, place)
                        values[name] = value
                    place = kept.rows("a", ctx.span)
                    a = ctx.operands("a tile", *shape) if place is None else place[:, f0:f1]
                    ctx.ops.glu(values["gate"], values["up"], a, self.activation)
                    down_part.add_lora_in(ctx, a, h_down)
                    done = down_part.finished(ctx, h_down, "h") if f1 == self.inner else None
                    down_part.forward(ctx, a, done, out, accumulate=accumulate or f0 > 0)
            ctx.release(down_proj.weight)

    def _recall(
        self, ctx: Context, n: Array, parts: Mapping[str, Projection], h: Mapping[str, Array | None],
        kept: Kept, columns: tuple[int, int],
    ) -> tuple[Array, Array]:  # fmt: skip
        """A tile of gate and up, both float32 or both operands: kept, or computed again."""
        first, last = columns
        places = {name: kept.rows(name, ctx.span) for name in parts}
        both = all(place is not None for place in places.values())
        values = []
        for name, part in parts.items():
            place = places[name]
            value = None if place is None else place[:, first:last]
            if value is None or not (both or value.dtype == FLOAT):
                fresh = ctx.floats(f"{name} tile", ctx.tokens, last - first)
                if value is None:
                    part.forward(ctx, n, h[name], fresh)
                else:
                    ctx.ops.cast(value, fresh)
                value = fresh
            values.append(value)
        return values[0], values[1]

    def _output_backward(
        self, ctx: Context, dy: Array, n: Array, w: BlockWeights, kept: Kept, d_out: Array
    ) -> None:
        """d_out (T, D), an operand: the gradient of down(a) from dy, with y = m + down(a) or m + rms(down(a)) g'."""
        if self.post_norm is None:
            ctx.ops.cast(dy, d_out)
            return
        with ctx.frame():
            out = kept.rows("mlp_out", ctx.span)
            if out is None:
                out = ctx.floats("output of down_proj", *dy.shape)
                self._sum(ctx, n, w, NOTHING, out, accumulate=False)
            norm = w.vectors[self.post_norm]
            ctx.ops.rms_norm_backward(dy, out, norm, self.eps, d_out, accumulate=False)
