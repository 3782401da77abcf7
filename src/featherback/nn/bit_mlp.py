"""The MLP of MatMul-free LM, a branch of a block: a gated unit of BitLinear layers.

Forward:   n = rms(m) g;   [gate|up] = gate_proj(n);   a = silu(gate) up;   y = m + down_proj(a)
Backward:  da from down_proj;   dup = da silu(gate),  dgate = da up silu'(gate);   dn from gate_proj

The inner norm of down_proj needs whole rows of a (T, F), so there are no tiles of F. n and a are float32, because the
quantisers read them. See docs/derivations/mlgru.md.
"""

from __future__ import annotations

from featherback.engine.backend.protocol import Array
from featherback.nn.bit_linear import BitLinear, norm_of
from featherback.nn.branch import Branch
from featherback.nn.context import Context
from featherback.nn.kept import NOTHING, Intermediate, Kept, KeptState
from featherback.nn.linear import BlockWeights, norm_backward

GATE, DOWN = "gate_proj", "down_proj"


class BitMLP(Branch):
    """A gated unit of BitLinear layers. `gate_proj` holds the rows of gate, then those of up."""

    hides_weights = True

    def __init__(self, *, hidden_size: int, intermediate_size: int, eps: float, pre_norm: str) -> None:
        self.width, self.eps, self.pre_norm = intermediate_size, eps, pre_norm
        self.projections = {GATE: (2 * intermediate_size, hidden_size), DOWN: (hidden_size, intermediate_size)}
        self.vectors = {pre_norm: (hidden_size,), norm_of(GATE): (hidden_size,), norm_of(DOWN): (intermediate_size,)}
        self.input, self.output = "m", "mlp_out"
        self.intermediates, self.bundles = {self.output: Intermediate(hidden_size)}, []

    def forward(self, ctx: Context, m: Array, w: BlockWeights, carry: None, kept: Kept = NOTHING) -> KeptState:
        """Return a state without arrays: `add_output` computes everything."""
        return KeptState(kept, again=False)

    def recompute(self, ctx: Context, m: Array, w: BlockWeights, carry: None, kept: Kept = NOTHING) -> KeptState:
        """Return a state without arrays: `backward` computes everything."""
        return KeptState(kept, again=True)

    def add_output(self, ctx: Context, state: KeptState, m: Array, w: BlockWeights) -> None:
        """m (T, D), float32, += down_proj(a)."""
        down = BitLinear.of(w, DOWN)
        with ctx.frame():
            a = ctx.floats("a", ctx.tokens, self.width)
            if not down.projection.needs_output:
                self._unit(ctx, m, w, a)
                down.run(ctx, a, m, accumulate=True)
                return
            out = self._output(ctx, state, m, w, a)
            ctx.ops.scale_columns(out, None, m, accumulate=True)

    def backward(self, ctx: Context, dy: Array, m: Array, state: KeptState, w: BlockWeights, carry: None) -> None:
        """dy (T, D), float32, becomes dm in place, from y = m + down_proj(a)."""
        gate_proj, down = BitLinear.of(w, GATE), BitLinear.of(w, DOWN)
        with ctx.frame():
            n = ctx.floats("n2", *m.shape)
            ctx.ops.rms_norm(m, w.vectors[self.pre_norm], self.eps, n)
            d_gate_up = ctx.operands("d[gate|up]", ctx.tokens, 2 * self.width)
            with ctx.frame():
                gate_up, da = self._gate_up(ctx, n, w), ctx.floats("da", ctx.tokens, self.width)
                gate, up = self._halves(gate_up)
                with ctx.frame():
                    a, d_out = ctx.floats("a", ctx.tokens, self.width), ctx.operands("dy, operand", *dy.shape)
                    ctx.ops.glu(gate, up, a, "silu")
                    ctx.ops.cast(dy, d_out)
                    if down.projection.needs_output:
                        down.projection.collect(ctx, dy, self._output(ctx, state, m, w, a, computed=True))
                    down.projection.scale_gradient(ctx, d_out)
                    down.backward(ctx, a, d_out, da)
                # a = silu(gate) up
                ctx.ops.glu_backward(da, gate, up, *self._halves(d_gate_up), "silu")
                gate_proj.projection.finish_backward(ctx, d_gate_up, gate_up)
            dn = ctx.floats("dn2", *m.shape)
            gate_proj.backward(ctx, n, d_gate_up, dn)
            norm_backward(ctx, dn, m, w, self.pre_norm, self.eps, dy)

    def _output(
        self, ctx: Context, state: KeptState, m: Array, w: BlockWeights, a: Array, *, computed: bool = False
    ) -> Array:
        """Return down_proj(a) (T, D): kept, or in the current frame. `computed`: a (T, F) is not to be filled."""
        place = state.kept.rows(self.output, ctx.span)
        if state.again and place is not None:
            return place
        if not computed:
            self._unit(ctx, m, w, a)
        out = ctx.floats("output of down_proj", *m.shape)
        BitLinear.of(w, DOWN).run(ctx, a, out)
        if place is not None:
            ctx.ops.cast(out, place)
        return out

    def _unit(self, ctx: Context, m: Array, w: BlockWeights, a: Array) -> None:
        """a (T, F), float32 = silu(gate) up."""
        with ctx.frame():
            n = ctx.floats("n2", *m.shape)
            ctx.ops.rms_norm(m, w.vectors[self.pre_norm], self.eps, n)
            ctx.ops.glu(*self._halves(self._gate_up(ctx, n, w)), a, "silu")

    def _gate_up(self, ctx: Context, n: Array, w: BlockWeights) -> Array:
        """Return [gate|up] (T, 2 F), float32, in the current frame."""
        gate_up = ctx.floats("[gate|up]", ctx.tokens, 2 * self.width)
        BitLinear.of(w, GATE).run(ctx, n, gate_up)
        return gate_up

    def _halves(self, both: Array) -> tuple[Array, Array]:
        return both[:, : self.width], both[:, self.width :]
