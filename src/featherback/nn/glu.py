"""The gated unit (MLP), a branch of a block, computed in tiles of F: no array of size T x F exists.

Forward:   n = rms(m) g, or m;   a = act(gate(n)) * up(n);   y = m + down(a), or m + rms(down(a)) g'

`nn.gated` computes down(a) and its gradient, a tile of F at a time. n, d_out, dn (T, D) live through the loop over
tiles. See docs/derivations/mlp.md.
"""

from __future__ import annotations

from featherback.engine.backend.protocol import Array
from featherback.nn.branch import Branch
from featherback.nn.context import Context
from featherback.nn.encodings import ENCODINGS
from featherback.nn.gated import Gated, GatedWeights
from featherback.nn.kept import NOTHING, Intermediate, Kept, KeptState
from featherback.nn.linear import BlockWeights, bias_of, norm_backward, normed, row_ranges, stored_shapes


class GatedUnit(Branch):
    """The MLP of a block, as configured by a family.

    `activation`: one that `glu` of `engine.backend.protocol` knows. `fused`: the one projection that holds the rows of
    gate and up. `pre_norm`, `post_norm`: names of the norms before and after it. `parts`,
    `encodings`: the products before the activation, and how they may be kept.
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
        parts: tuple[str, ...] = ("gate", "up"),
        encodings: tuple[str, ...] = ("operand", "blocks8"),
    ) -> None:
        self.intermediate_size, self.eps, self.gated = intermediate_size, eps, Gated(intermediate_size, activation)
        self.pre_norm, self.post_norm = pre_norm, post_norm
        sizes = dict.fromkeys(parts, intermediate_size)
        self.parts = row_ranges(sizes, fused)
        self.projections = stored_shapes(self.parts, hidden_size) | {"down_proj": (hidden_size, intermediate_size)}
        self.vectors: dict[str, tuple[int, ...]] = {name: (hidden_size,) for name in (pre_norm, post_norm) if name}
        self.input, self.output = "m", "mlp_out"
        self.intermediates = {name: Intermediate(size, encodings) for name, size in sizes.items()}
        self.intermediates["mlp_out"] = Intermediate(hidden_size)
        self.bundles = [(name,) for name in (*sizes, *(["mlp_out"] if post_norm else []))]

    def forward(self, ctx: Context, m: Array, w: BlockWeights, carry: None = None, kept: Kept = NOTHING) -> KeptState:
        """Return a state without arrays: `add_output` computes y = m + down(act(gate(n)) * up(n)) tile by tile."""
        return KeptState(kept, again=False)

    def add_output(self, ctx: Context, state: KeptState, m: Array, w: BlockWeights) -> None:
        """m (T, D), float32, the input, becomes y in place.

        Intermediates are written to `kept`, where it has arrays.
        """
        kept, again = state
        with ctx.frame():
            n = normed(ctx, "n2", m, w, self.pre_norm, self.eps)
            if not self._is_apart(w):
                if n is m:  # which the sum overwrites, while later tiles read n
                    n = ctx.operands("n2", *m.shape)
                    ctx.ops.cast(m, n)
                self.gated.forward(ctx, n, self._weights(w), m, kept, again=again, accumulate=True)
                return
            out = kept.rows("mlp_out", ctx.span) if again else None
            if out is None:
                out = ctx.floats("output of down_proj", *m.shape)
                self.gated.forward(ctx, n, self._weights(w), out, kept, again=again)
                if not again and (place := kept.rows("mlp_out", ctx.span)) is not None:
                    ctx.ops.cast(out, place)
            if self.post_norm is None:
                ctx.ops.scale_columns(out, None, m, accumulate=True)
            else:
                ctx.ops.rms_norm(out, w.vectors[self.post_norm], self.eps, m, accumulate=True)

    def recompute(self, ctx: Context, m: Array, w: BlockWeights, carry: None = None, kept: Kept = NOTHING) -> KeptState:
        """Return the state. Nothing is computed here, except for MeBP (`ctx.autodiff`).

        Plain autodiff computes the whole branch again, with its unused output, and holds all intermediates (T, F) until
        the caller's frame ends. They have the types that `backward` would compute them in, so that the bits are equal.
        """
        if ctx.autodiff:
            held = [name for name in self.intermediates if name != "mlp_out" or self._is_apart(w)]
            kept = Kept(
                {name: ctx.floats(name, ctx.tokens, self.intermediates[name].width) for name in held}
                | {"a": ctx.operands("a", ctx.tokens, self.intermediate_size)}
            )
            y = ctx.floats("y", *m.shape)
            ctx.ops.cast(m, y)
            self.add_output(ctx, KeptState(kept, again=False), y, w)
        return KeptState(kept, again=True)

    def _is_apart(self, w: BlockWeights) -> bool:
        """Return whether down(a) (T, D) needs its own array, because a norm follows it or its adapter reads it."""
        return self.post_norm is not None or w.projections["down_proj"].needs_output

    def backward(
        self, ctx: Context, dy: Array, m: Array, state: KeptState, w: BlockWeights, carry: None = None
    ) -> None:
        """dy (T, D), float32, the gradient of y, becomes the gradient of m in place. m (T, D) is float32 or an operand.

        Gate and up are computed again tile by tile, unless they are kept. down(a) is computed again only if a norm
        follows it or its adapter reads it, and only if it is not kept.
        """
        kept, weights = state.kept, self._weights(w)
        with ctx.frame():
            # In this frame, all (T, D): n; d_out, the gradient of down(a); dn; and, rarely, down(a).
            n = normed(ctx, "n2", m, w, self.pre_norm, self.eps)
            d_out = ctx.operands("dy, operand", *m.shape)
            self._output_backward(ctx, dy, n, w, kept, d_out)
            out = resummed = None  # down(a), if its adapter reads it: kept, or summed again from the tiles
            if self.post_norm is None and weights.down.needs_output:
                out = kept.rows("mlp_out", ctx.span)
                if out is None:
                    out = resummed = ctx.floats("output of down_proj", *m.shape)
            dn = dy if self.pre_norm is None else ctx.floats("dn2", *m.shape)

            def collect() -> None:
                if out is not None:
                    weights.down.collect(ctx, dy, out)

            self.gated.backward(
                ctx, n, d_out, dn, weights, kept, accumulate=dn is dy, resummed=resummed, finished=collect
            )
            if self.pre_norm is not None:
                norm_backward(ctx, dn, m, w, self.pre_norm, self.eps, dy)

    def _weights(self, w: BlockWeights) -> GatedWeights:
        return GatedWeights.of(w, self.parts, "down_proj")

    def _output_backward(self, ctx: Context, dy: Array, n: Array, w: BlockWeights, kept: Kept, d_out: Array) -> None:
        """d_out (T, D), an operand, becomes the gradient of down(a) before `finish`.

        dy (T, D) is the gradient of y = m + down(a), or m + rms(down(a)) g'.
        """
        down_proj = w.projections["down_proj"]
        if self.post_norm is None:
            ctx.ops.cast(dy, d_out)
            down_proj.scale_gradient(ctx, d_out)
            return
        with ctx.frame():
            out = kept.rows("mlp_out", ctx.span)
            if out is None:
                out = ctx.floats("output of down_proj", *dy.shape)
                self.gated.forward(ctx, n, self._weights(w), out, kept, again=True)
            norm_backward(ctx, dy, out, w, self.post_norm, self.eps, d_out, accumulate=False)
            down_proj.finish_backward(ctx, d_out, out)


ACTIVATION = "gelu_tanh"


class PlainMLP(GatedUnit):
    """The MLP of a block without a gate. Its projections are up_proj (F, D) and down_proj (D, F), both with biases.

    `activation`: "gelu" or its approximation "gelu_tanh". The other arguments are those of `GatedUnit`.

    Forward:    n = (m - mean) / std g + b;   z = up(n);   a = gelu(z);   y = m + down(a)
    Backward:   da = dy W_d;   dz = da gelu'(z);   dn = dz W_u;   dm = dy + the gradient of the norm

    dz needs z only for the slope gelu'(z). So of z two bits may be kept (`encodings/regelu2.py`), if the user asks for
    it and nothing else reads z or a: dA of an adapter on down does. See docs/derivations/mlp.md.
    """

    def __init__(
        self, *, hidden_size: int, intermediate_size: int, eps: float,
        pre_norm: str | None = "post_attention_layernorm", activation: str = ACTIVATION,
    ) -> None:  # fmt: skip
        slopes = (name for name in ENCODINGS.names if ENCODINGS[name].slopes_of == activation)
        super().__init__(
            hidden_size=hidden_size, intermediate_size=intermediate_size, eps=eps, activation=activation,
            pre_norm=pre_norm, parts=("up",), encodings=("operand", "blocks8", *slopes),
        )  # fmt: skip
        self.vectors |= {} if pre_norm is None else {bias_of(pre_norm): (hidden_size,)}
        self.vectors |= {"up_bias": (intermediate_size,), "down_bias": (hidden_size,)}
