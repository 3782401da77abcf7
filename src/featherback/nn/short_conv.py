"""A gated short convolution, a branch of a block: LFM2's.

Forward:   n = rms(x) g;   [b|c|z] = lin_in(n);   p = b z;   u_t = sum of w_i p_{t-i}, i < K, within a sequence
           y = x + lin_out(c u)
Backward:  dc = du' u,  du = du' c,  dp_t = sum of w_i du_{t+i},  db = dp z,  dz = dp b,   du' the gradient of c u

The products b z, c u are of elements; w (D, K) has K taps for each column, of which a file's last is w_0. The carry is
the K - 1 rows of p before a span and, in the backward pass, those of du behind it. docs/derivations/short_conv.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from featherback.engine.backend.protocol import Array
from featherback.nn.branch import Branch, Remembered
from featherback.nn.context import Context
from featherback.nn.kept import NOTHING, Intermediate, Kept
from featherback.nn.linear import BlockWeights, norm_backward, normed
from featherback.nn.span import Span

IN, OUT, TAPS = "conv_in_proj", "conv_out_proj", "conv"


@dataclass(frozen=True)
class Rows:
    """What passes between spans, R = K - 1 rows each."""

    before: Array  # (R, D): p of the tokens before the span
    starts: Array | None = None  # (R chunks, D): the same of each chunk, in the backward pass
    behind: Array | None = None  # (R, D): du of the tokens behind the span as far as its last sequence goes, else 0
    chunk: int = 0

    def start(self, span: Span) -> Array:
        """p before the span, in the backward pass."""
        first, count = span.start // self.chunk, len(self.before)
        assert self.starts is not None
        return self.starts[first * count : (first + 1) * count]


class ConvState(NamedTuple):
    """What the backward pass of a span needs of its forward pass."""

    bcz: Array | None  # (T, 3 D); None going forward
    s: Array  # (T, D) = c u, an operand
    out: Array | None  # (T, D): lin_out(s), if its adapter needs it


class ShortConv(Branch):
    """`taps`: K, at least 2."""

    def __init__(self, *, hidden_size: int, taps: int, eps: float, pre_norm: str = "input_layernorm") -> None:
        self.size, self.taps, self.eps, self.pre_norm = hidden_size, taps, eps, pre_norm
        self.projections = {IN: (3 * hidden_size, hidden_size), OUT: (hidden_size, hidden_size)}
        self.vectors = {pre_norm: (hidden_size,), TAPS: (hidden_size, taps)}
        self.input, self.output = "conv_in", "conv_out"
        self.intermediates, self.bundles = {self.output: Intermediate(hidden_size)}, []
        self.remembered = {"p": Remembered(hidden_size, rows=taps - 1)}

    def carry(self, ctx: Context, tokens: int, kept: Kept, *, backward: bool) -> Rows:
        rows = self.taps - 1
        before = ctx.floats("b z before", rows, self.size)
        if not backward:
            return Rows(before)
        starts = ctx.floats("b z before chunks", -(-tokens // ctx.tokens) * rows, self.size)
        behind = ctx.floats("du from behind", rows, self.size)
        ctx.ops.fill(behind, 0)
        return Rows(before, starts, behind, ctx.tokens)

    def resumed(self, arrays: Mapping[str, Array]) -> Rows:
        return Rows(arrays["p"])

    def rebuild(self, ctx: Context, x: Callable[[], Array], w: BlockWeights, carry: Rows, kept: Kept) -> None:
        ctx.ops.cast(carry.before, carry.start(ctx.span))
        with ctx.frame():
            bcz = self._project(ctx, x(), w)
            self._move(ctx, self._gated(ctx, bcz, carry.before), carry)

    def forward(self, ctx: Context, x: Array, w: BlockWeights, carry: Rows, kept: Kept = NOTHING) -> ConvState:
        s, out = ctx.operands("c u", ctx.tokens, self.size), self._room_for_output(ctx, w)
        with ctx.frame():
            bcz = self._project(ctx, x, w)
            p = self._gated(ctx, bcz, carry.before)
            self._convolved(ctx, bcz, p, w, s)
            self._move(ctx, p, carry)
        if out is not None:
            w.projections[OUT].run(ctx, s, out)
            if (place := kept.rows(self.output, ctx.span)) is not None:
                ctx.ops.cast(out, place)
        return ConvState(None, s, out)

    def recompute(self, ctx: Context, x: Array, w: BlockWeights, carry: Rows, kept: Kept = NOTHING) -> ConvState:
        s, bcz = ctx.operands("c u", ctx.tokens, self.size), self._project(ctx, x, w)
        with ctx.frame():
            self._convolved(ctx, bcz, self._gated(ctx, bcz, carry.start(ctx.span)), w, s)
        out = kept.rows(self.output, ctx.span)
        if out is None and (out := self._room_for_output(ctx, w)) is not None:
            w.projections[OUT].run(ctx, s, out)
        return ConvState(bcz, s, out)

    def add_output(self, ctx: Context, state: ConvState, x: Array, w: BlockWeights) -> None:
        if state.out is not None:
            ctx.ops.scale_columns(state.out, None, x, accumulate=True)
        else:
            w.projections[OUT].run(ctx, state.s, x, accumulate=True)

    def backward(self, ctx: Context, dy: Array, x: Array, state: ConvState, w: BlockWeights, carry: Rows) -> None:
        bcz, inward, outward = state.bcz, w.projections[IN], w.projections[OUT]
        assert bcz is not None
        with ctx.frame():
            d_bcz = ctx.operands("d[b|c|z]", *bcz.shape)
            with ctx.frame():
                ds = ctx.floats("d(c u)", *dy.shape)
                with ctx.frame():
                    operand = ctx.operands("dy, operand", *dy.shape)
                    ctx.ops.cast(dy, operand)
                    outward.collect(ctx, operand, state.out)
                    outward.weigh(ctx, operand)
                    outward.backward(ctx, state.s, operand, ds)
                self._elements_backward(ctx, ds, bcz, w, carry, d_bcz)
            inward.collect(ctx, d_bcz, bcz)
            inward.weigh(ctx, d_bcz)
            n = normed(ctx, "n1", x, w, self.pre_norm, self.eps)
            dn = ctx.floats("dn1", *x.shape)
            inward.backward(ctx, n, d_bcz, dn)
            norm_backward(ctx, dn, x, w, self.pre_norm, self.eps, dy)

    def _elements_backward(
        self, ctx: Context, ds: Array, bcz: Array, w: BlockWeights, carry: Rows, d_bcz: Array
    ) -> None:
        """d_bcz (T, 3 D), an operand, from ds (T, D), the gradient of c u, which is overwritten."""
        (b, c, z), (db, dc, dz) = self._parts(bcz), self._parts(d_bcz)
        tokens, rows, ops = ctx.tokens, self.taps - 1, ctx.ops
        taps = self._taps(ctx, w)
        du, u = ctx.floats("du", tokens + rows, self.size), ctx.floats("u", tokens, self.size)
        p = self._gated(ctx, bcz, carry.start(ctx.span))
        self._convolve(ctx, p, taps, u)
        ops.multiply(ds, c, du[:tokens])
        ops.multiply(ds, u, u)
        ops.cast(u, dc)
        ops.cast(carry.behind, du[tokens:])
        if w.sink is not None:
            self._taps_gradient(ctx, du, p, w)
        dp = ds
        ops.scale_columns(du[:tokens], taps[0], dp)
        for back in range(1, self.taps):
            for sequence, _ in ctx.span.sequences:
                stop = sequence.stop + (back if sequence.stop == tokens else 0)
                if sequence.start + back < stop:
                    earlier = dp[sequence.start : stop - back]
                    ops.scale_columns(du[sequence.start + back : stop], taps[back], earlier, accumulate=True)
        ops.multiply(dp, z, u)
        ops.cast(u, db)
        ops.multiply(dp, b, u)
        ops.cast(u, dz)
        self._pass_back(ctx, du, carry)

    def _pass_back(self, ctx: Context, du: Array, carry: Rows) -> None:
        """The span before has its last rows' gradient from the first of this one's, if its sequence goes on here."""
        first, _ = next(ctx.span.sequences)
        rows = self.taps - 1
        found = 0
        assert carry.behind is not None
        if ctx.span.positions[0]:
            found = rows if first.stop == ctx.tokens else min(rows, first.stop)
            ctx.ops.cast(du[:found], carry.behind[:found])
        if found < rows:
            ctx.ops.fill(carry.behind[found:], 0)

    def _taps_gradient(self, ctx: Context, du: Array, p: Array, w: BlockWeights) -> None:
        """dw_i = sum over t of du_t p_{t-i}, handed to what trains it."""
        assert w.sink is not None
        rows = self.taps - 1
        with ctx.frame():
            gradient, stored = ctx.floats("dw", self.taps, self.size), ctx.floats("dw, stored", self.size, self.taps)
            ctx.ops.fill(gradient, 0)
            for back, of_tap in enumerate(self._by_age(gradient)):
                for first, stop in self._reached(ctx.span, back):
                    earlier = p[rows + first - back : rows + stop - back]
                    ctx.ops.column_dots(du[first:stop], earlier, of_tap)
            ctx.ops.transpose(gradient, stored)
            w.sink.vector(ctx, TAPS, stored.reshape(self.size * self.taps))

    def _project(self, ctx: Context, x: Array, w: BlockWeights) -> Array:
        """[b|c|z] (T, 3 D) of x (T, D), float32."""
        bcz = ctx.floats("[b|c|z]", ctx.tokens, 3 * self.size)
        with ctx.frame():
            w.projections[IN].run(ctx, normed(ctx, "n1", x, w, self.pre_norm, self.eps), bcz)
        return bcz

    def _gated(self, ctx: Context, bcz: Array, before: Array) -> Array:
        """p (R + T, D): R rows of before the span, zeros where its first sequence had not begun, and its own."""
        rows = self.taps - 1
        there = min(int(ctx.span.positions[0]), rows)
        p = ctx.floats("b z", rows + ctx.tokens, self.size)
        if there < rows:
            ctx.ops.fill(p[: rows - there], 0)
        if there:
            ctx.ops.cast(before[rows - there :], p[rows - there : rows])
        b, _, z = self._parts(bcz)
        ctx.ops.multiply(b, z, p[rows:])
        return p

    def _convolved(self, ctx: Context, bcz: Array, p: Array, w: BlockWeights, s: Array) -> None:
        """s (T, D) = c u, an operand."""
        u = ctx.floats("u", *s.shape)
        self._convolve(ctx, p, self._taps(ctx, w), u)
        ctx.ops.multiply(u, self._parts(bcz)[1], u)
        ctx.ops.cast(u, s)

    def _convolve(self, ctx: Context, p: Array, taps: list[Array], u: Array) -> None:
        """u (T, D) from p (R + T, D)."""
        rows = self.taps - 1
        ctx.ops.scale_columns(p[rows:], taps[0], u)
        for back in range(1, self.taps):
            for first, stop in self._reached(ctx.span, back):
                earlier = p[rows + first - back : rows + stop - back]
                ctx.ops.scale_columns(earlier, taps[back], u[first:stop], accumulate=True)

    def _reached(self, span: Span, back: int) -> Iterator[tuple[int, int]]:
        """[first, stop): the rows of the span whose sequence has a token `back` before; what lies before the span is
        zero where it has none."""
        for sequence, _ in span.sequences:
            first = sequence.start + (back if sequence.start else 0)
            if first < sequence.stop:
                yield first, sequence.stop

    def _taps(self, ctx: Context, w: BlockWeights) -> list[Array]:
        """w_i (D,), i = 0 that of a token itself: a file's last."""
        taps = ctx.floats("taps", self.taps, self.size)
        ctx.ops.transpose(w.vectors[TAPS], taps)
        return self._by_age(taps)

    def _by_age(self, taps: Array) -> list[Array]:
        """The rows of (K, D), the last first."""
        return [taps[i : i + 1].reshape(self.size) for i in range(self.taps)][::-1]

    def _move(self, ctx: Context, p: Array, carry: Rows) -> None:
        """The last rows of p are those before the next span."""
        ctx.ops.cast(p[ctx.tokens :], carry.before)

    def _parts(self, bcz: Array) -> tuple[Array, Array, Array]:
        d = self.size
        return bcz[:, :d], bcz[:, d : 2 * d], bcz[:, 2 * d :]

    def _room_for_output(self, ctx: Context, w: BlockWeights) -> Array | None:
        return ctx.floats("output of conv_out_proj", ctx.tokens, self.size) if w.projections[OUT].needs_output else None
