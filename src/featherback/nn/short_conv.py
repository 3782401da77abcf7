"""The gated short convolution of LFM2, a branch of a block.

Forward:   n = rms(x) g;   [b|c|z] = lin_in(n);   p = b z;   u = convolution of p (`convolution.py`);
           y = x + lin_out(c u)
Backward:  ds = d(c u) from lin_out;   dc = ds u,  du = ds c,  dp from du,  db = dp z,  dz = dp b

The products b z and c u are elementwise. The carry is that of the convolution. See docs/derivations/short_conv.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from featherback.engine.backend.protocol import Array
from featherback.nn.branch import Branch
from featherback.nn.context import Context
from featherback.nn.convolution import TAPS, Convolution, Rows
from featherback.nn.kept import NOTHING, Intermediate, Kept
from featherback.nn.linear import BlockWeights, norm_backward, normed

IN, OUT = "conv_in_proj", "conv_out_proj"


class ConvState(NamedTuple):
    """What the output and the backward pass of a span need."""

    bcz: Array | None  # (T, 3 D); None in the forward pass
    s: Array  # (T, D) = c u, an operand
    out: Array | None  # (T, D): lin_out(s), if its adapter needs it


class ShortConv(Branch):
    """A gated short convolution. `taps` is K, at least 2."""

    def __init__(self, *, hidden_size: int, taps: int, eps: float, pre_norm: str = "input_layernorm") -> None:
        self.size, self.eps, self.pre_norm = hidden_size, eps, pre_norm
        self.convolution = Convolution(hidden_size, taps, "b z")
        self.projections = {IN: (3 * hidden_size, hidden_size), OUT: (hidden_size, hidden_size)}
        self.vectors = {pre_norm: (hidden_size,), TAPS: self.convolution.shape}
        self.input, self.output = "conv_in", "conv_out"
        self.intermediates, self.bundles = {self.output: Intermediate(hidden_size)}, []
        self.remembered = self.convolution.remembered

    def carry(self, ctx: Context, tokens: int, kept: Kept, *, backward: bool) -> Rows:
        """Return the carry of the convolution."""
        return self.convolution.carry(ctx, tokens, backward=backward)

    def resumed(self, arrays: Mapping[str, Array]) -> Rows:
        """Return the carry of a decoder: the last K - 1 rows of p."""
        return self.convolution.resumed(arrays)

    def rebuild(self, ctx: Context, x: Callable[[], Array], w: BlockWeights, carry: Rows, kept: Kept) -> None:
        """Note the rows of p before the span in `starts`, and compute its own p = b z for the next one."""
        self.convolution.note_start(ctx, carry)
        with ctx.frame():
            bcz = self._project(ctx, x(), w)
            self.convolution.keep_last_rows(ctx, self._gated(ctx, bcz, carry.before), carry)

    def forward(self, ctx: Context, x: Array, w: BlockWeights, carry: Rows, kept: Kept = NOTHING) -> ConvState:
        """s = c u, where u is the convolution of p = b z. The last rows of p go to the carry."""
        s, out = ctx.operands("c u", ctx.tokens, self.size), self._room_for_output(ctx, w)
        with ctx.frame():
            bcz = self._project(ctx, x, w)
            p = self._gated(ctx, bcz, carry.before)
            self._convolved(ctx, bcz, p, w, s)
            self.convolution.keep_last_rows(ctx, p, carry)
        if out is not None:
            w.projections[OUT].run(ctx, s, out)
            if (place := kept.rows(self.output, ctx.span)) is not None:
                ctx.ops.cast(out, place)
        return ConvState(None, s, out)

    def recompute(self, ctx: Context, x: Array, w: BlockWeights, carry: Rows, kept: Kept = NOTHING) -> ConvState:
        """Like `forward`, with [b|c|z] kept for `backward`."""
        s, bcz = ctx.operands("c u", ctx.tokens, self.size), self._project(ctx, x, w)
        with ctx.frame():
            self._convolved(ctx, bcz, self._gated(ctx, bcz, carry.start(ctx.span)), w, s)
        out = kept.rows(self.output, ctx.span)
        if out is None and (out := self._room_for_output(ctx, w)) is not None:
            w.projections[OUT].run(ctx, s, out)
        return ConvState(bcz, s, out)

    def add_output(self, ctx: Context, state: ConvState, x: Array, w: BlockWeights) -> None:
        """x (T, D), float32, += lin_out(s)."""
        if state.out is not None:
            ctx.ops.scale_columns(state.out, None, x, accumulate=True)
        else:
            w.projections[OUT].run(ctx, state.s, x, accumulate=True)

    def backward(self, ctx: Context, dy: Array, x: Array, state: ConvState, w: BlockWeights, carry: Rows) -> None:
        """dy (T, D), float32, becomes dx in place, from y = x + lin_out(c u)."""
        bcz, inward = state.bcz, w.projections[IN]
        assert bcz is not None
        with ctx.frame():
            d_bcz = ctx.operands("d[b|c|z]", *bcz.shape)
            with ctx.frame():
                ds = ctx.floats("d(c u)", *dy.shape)
                # y = x + lin_out(s), s = c u
                w.projections[OUT].add_output_backward(ctx, state.s, state.out, dy, ds)
                # u_t = sum of w_i p_{t-i}, p = b z
                self._elements_backward(ctx, ds, bcz, w, carry, d_bcz)
            # [b|c|z] = lin_in(n)
            inward.finish_backward(ctx, d_bcz, bcz)
            n = normed(ctx, "n1", x, w, self.pre_norm, self.eps)
            dn = ctx.floats("dn1", *x.shape)
            inward.backward(ctx, n, d_bcz, dn)
            norm_backward(ctx, dn, x, w, self.pre_norm, self.eps, dy)

    def _elements_backward(
        self, ctx: Context, ds: Array, bcz: Array, w: BlockWeights, carry: Rows, d_bcz: Array
    ) -> None:
        """d_bcz (T, 3 D), an operand, from ds (T, D), the gradient of c u, which is overwritten."""
        (b, c, z), (db, dc, dz) = self._parts(bcz), self._parts(d_bcz)
        tokens, ops, convolution = ctx.tokens, ctx.ops, self.convolution
        taps = convolution.read_taps(ctx, w)
        du, u = ctx.floats("du", tokens + convolution.rows, self.size), ctx.floats("u", tokens, self.size)
        p = self._gated(ctx, bcz, carry.start(ctx.span))
        convolution.forward(ctx, p, taps, u)
        ops.multiply(ds, c, du[:tokens])
        ops.multiply(ds, u, u)
        ops.cast(u, dc)
        dp = ds
        convolution.backward(ctx, du, p, taps, w, carry, dp)
        ops.multiply(dp, z, u)
        ops.cast(u, db)
        ops.multiply(dp, b, u)
        ops.cast(u, dz)
        convolution.leave_to_previous_span(ctx, du, carry)

    def _project(self, ctx: Context, x: Array, w: BlockWeights) -> Array:
        """Return [b|c|z] (T, 3 D) from x (T, D), float32."""
        bcz = ctx.floats("[b|c|z]", ctx.tokens, 3 * self.size)
        with ctx.frame():
            w.projections[IN].run(ctx, normed(ctx, "n1", x, w, self.pre_norm, self.eps), bcz)
        return bcz

    def _gated(self, ctx: Context, bcz: Array, before: Array) -> Array:
        """Return p (R + T, D): R rows from before the span, then its own b z."""
        p = self.convolution.room(ctx, before)
        b, _, z = self._parts(bcz)
        ctx.ops.multiply(b, z, p[self.convolution.rows :])
        return p

    def _convolved(self, ctx: Context, bcz: Array, p: Array, w: BlockWeights, s: Array) -> None:
        """s (T, D) = c u, an operand."""
        u = ctx.floats("u", *s.shape)
        self.convolution.forward(ctx, p, self.convolution.read_taps(ctx, w), u)
        ctx.ops.multiply(u, self._parts(bcz)[1], u)
        ctx.ops.cast(u, s)

    def _parts(self, bcz: Array) -> tuple[Array, Array, Array]:
        d = self.size
        return bcz[:, :d], bcz[:, d : 2 * d], bcz[:, 2 * d :]

    def _room_for_output(self, ctx: Context, w: BlockWeights) -> Array | None:
        return ctx.floats("output of conv_out_proj", ctx.tokens, self.size) if w.projections[OUT].needs_output else None
