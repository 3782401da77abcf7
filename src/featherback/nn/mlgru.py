"""The MLGRU, the token mixer of MatMul-free LM, a branch of a block.

Forward:   n = rms(x) g;   i, f, g = lin_i(n), lin_f(n), lin_g(n);   k_t = (1 - lb) sigmoid(-f_t)
           h_t = (1 - k_t) h_{t-1} + silu(i_t) k_t, within a sequence;   o = rms(g) w silu(h);   y = x + lin_o(o)
Backward:  do from lin_o;   dh = do c silu'(h),  dc = do silu(h), where c = rms(g) w
           backwards in time, d_t = dh_t + (1 - k_{t+1}) d_{t+1}:
           di_t = d_t k_t silu'(i_t),   df_t = d_t (h_{t-1} - silu(i_t)) k_t sigmoid(f_t)

All lin are BitLinear layers. 1 - k_t = lb + (1 - lb) sigmoid(f_t) is the forget gate, and lb (D,) the layer's lower
bound. The carry is h of the last token before a span and, in the backward pass, the gradient that the
tokens behind the span leave to the span's last h. See docs/derivations/mlgru.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from featherback.engine.backend.protocol import Array
from featherback.nn.bit_linear import BitLinear, norm_of
from featherback.nn.branch import Branch, Remembered
from featherback.nn.context import Context
from featherback.nn.kept import NOTHING, Intermediate, Kept
from featherback.nn.linear import BlockWeights, norm_backward
from featherback.nn.span import Span

INPUT, FORGET, GATE, OUT = "i_proj", "f_proj", "g_proj", "o_proj"
BOUND, OUTPUT_NORM = "lower_bound", "output_norm"


@dataclass(frozen=True)
class Recurrence:
    """The carry."""

    before: Array  # (1, D): h of the token before the span
    starts: Array | None = None  # (chunks, D): `before` of each chunk, in the backward pass
    behind: Array | None = None  # (1, D): gradient of the span's last h from the tokens after the span
    chunk: int = 0

    def start(self, span: Span) -> Array:
        """Return h before the span (1, D), in the backward pass."""
        number = span.start // self.chunk
        assert self.starts is not None
        return self.starts[number : number + 1]


class MLGRUState(NamedTuple):
    """What the output and the backward pass of a span need, all (T, D) and float32."""

    o: Array  # the input of lin_o
    out: Array | None  # lin_o(o), if its adapter needs it
    i: Array | None = None  # None in the forward pass, as are the others
    f: Array | None = None
    g: Array | None = None
    h: Array | None = None


class MLGRU(Branch):
    """`bounded`: whether the model has lower bounds of the forget gates."""

    hides_weights = True

    def __init__(self, *, hidden_size: int, eps: float, pre_norm: str, bounded: bool) -> None:
        self.size, self.eps, self.pre_norm, self.bounded = hidden_size, eps, pre_norm, bounded
        names = (INPUT, FORGET, GATE, OUT)
        self.projections = dict.fromkeys(names, (hidden_size, hidden_size))
        vectors = [pre_norm, *map(norm_of, names), OUTPUT_NORM, *([BOUND] if bounded else [])]
        self.vectors = dict.fromkeys(vectors, (hidden_size,))
        self.input, self.output = "mixer_in", "mixer_out"
        self.intermediates, self.bundles = {self.output: Intermediate(hidden_size)}, []
        self.remembered = {"h": Remembered(hidden_size, rows=1)}

    def carry(self, ctx: Context, tokens: int, kept: Kept, *, backward: bool) -> Recurrence:
        """Return arrays for h before a span and, with `backward`, before each chunk, and for its gradient."""
        before = ctx.floats("h before", 1, self.size)
        if not backward:
            return Recurrence(before)
        starts = ctx.floats("h before chunks", -(-tokens // ctx.tokens), self.size)
        behind = ctx.floats("dh from behind", 1, self.size)
        ctx.ops.fill(behind, 0)
        return Recurrence(before, starts, behind, ctx.tokens)

    def resumed(self, arrays: Mapping[str, Array]) -> Recurrence:
        """Return the carry of a decoder: h of the last token."""
        return Recurrence(arrays["h"])

    def rebuild(self, ctx: Context, x: Callable[[], Array], w: BlockWeights, carry: Recurrence, kept: Kept) -> None:
        """Note h before the span in `starts`, and compute the span's own h for the next one."""
        ctx.ops.cast(carry.before, carry.start(ctx.span))
        with ctx.frame():
            i, f = self._rooms(ctx, "i", "f")
            self._project(ctx, x(), w, {INPUT: i, FORGET: f})
            self._recur(ctx, i, f, w, carry.before, ctx.floats("h", ctx.tokens, self.size))

    def forward(self, ctx: Context, x: Array, w: BlockWeights, carry: Recurrence, kept: Kept = NOTHING) -> MLGRUState:
        """o = rms(g) w silu(h). The last h goes to the carry."""
        (o,) = self._rooms(ctx, "o")
        out = self._room_for_output(ctx, w)
        with ctx.frame():
            i, f, g, h = self._rooms(ctx, "i", "f", "g", "h")
            self._project(ctx, x, w, {INPUT: i, FORGET: f, GATE: g})
            self._recur(ctx, i, f, w, carry.before, h)
            self._gated(ctx, g, h, w, o)
        if out is not None:
            BitLinear.of(w, OUT).run(ctx, o, out)
            if (place := kept.rows(self.output, ctx.span)) is not None:
                ctx.ops.cast(out, place)
        return MLGRUState(o, out)

    def recompute(self, ctx: Context, x: Array, w: BlockWeights, carry: Recurrence, kept: Kept = NOTHING) -> MLGRUState:
        """Like `forward`, with all arrays kept for `backward`."""
        i, f, g, h, o = self._rooms(ctx, "i", "f", "g", "h", "o")
        self._project(ctx, x, w, {INPUT: i, FORGET: f, GATE: g})
        with ctx.frame():
            before = ctx.floats("h before, moving", 1, self.size)
            ctx.ops.cast(carry.start(ctx.span), before)
            self._recur(ctx, i, f, w, before, h)
        self._gated(ctx, g, h, w, o)
        out = kept.rows(self.output, ctx.span)
        if out is None and (out := self._room_for_output(ctx, w)) is not None:
            BitLinear.of(w, OUT).run(ctx, o, out)
        return MLGRUState(o, out, i, f, g, h)

    def add_output(self, ctx: Context, state: MLGRUState, x: Array, w: BlockWeights) -> None:
        """x (T, D), float32, += lin_o(o)."""
        if state.out is not None:
            ctx.ops.scale_columns(state.out, None, x, accumulate=True)
        else:
            BitLinear.of(w, OUT).run(ctx, state.o, x, accumulate=True)

    def backward(
        self, ctx: Context, dy: Array, x: Array, state: MLGRUState, w: BlockWeights, carry: Recurrence
    ) -> None:
        """dy (T, D), float32, becomes dx in place, from y = x + lin_o(rms(g) w silu(h))."""
        o, out, i, f, g, h = state
        assert i is not None
        outward, shape = BitLinear.of(w, OUT), dy.shape
        with ctx.frame():
            dn = ctx.floats("dn1", *shape)
            di, df, dg = (ctx.operands(name, *shape) for name in ("di", "df", "dg"))
            with ctx.frame():
                (dh,) = self._rooms(ctx, "dh")
                with ctx.frame():
                    do, c, dc = self._rooms(ctx, "do", "c", "dc")
                    # y = x + lin_o(o)
                    with ctx.frame():
                        operand = ctx.operands("dy, operand", *shape)
                        ctx.ops.cast(dy, operand)
                        outward.projection.finish_backward(ctx, operand, out)
                        outward.backward(ctx, o, operand, do)
                    # o = silu(h) c, c = rms(g) w
                    ctx.ops.rms_norm(g, w.vectors[OUTPUT_NORM], self.eps, c)
                    ctx.ops.glu_backward(do, h, c, dh, dc, "silu")
                    ctx.ops.rms_norm_backward(dc, g, w.vectors[OUTPUT_NORM], self.eps, dg, accumulate=False)
                # h_t = (1 - k_t) h_{t-1} + silu(i_t) k_t
                self._recur_backward(ctx, dh, i, f, h, w, carry, di, df)
            # i, f, g = lin(n), n = rms(x) g
            n = self._normed(ctx, x, w)
            for name, y, d in ((INPUT, i, di), (FORGET, f, df), (GATE, g, dg)):
                layer = BitLinear.of(w, name)
                layer.projection.finish_backward(ctx, d, y)
                layer.backward(ctx, n, d, dn, accumulate=name != INPUT)
            norm_backward(ctx, dn, x, w, self.pre_norm, self.eps, dy)

    def _recur(self, ctx: Context, i: Array, f: Array, w: BlockWeights, before: Array, h: Array) -> None:
        """h (T, D) of a span. `before` (1, D), h before the span, becomes h of its last token."""
        with ctx.frame():
            bound, state = self._bound(ctx, w), before.reshape(self.size)
            for rows, _ in ctx.span.sequences:
                if not ctx.span.positions[rows.start]:
                    ctx.ops.fill(state, 0)
                ctx.ops.gated_recurrence(i[rows], f[rows], bound, state, h[rows])

    def _recur_backward(
        self, ctx: Context, dh: Array, i: Array, f: Array, h: Array, w: BlockWeights, carry: Recurrence,
        di: Array, df: Array,
    ) -> None:  # fmt: skip
        """di, df (T, D), operands, from dh (T, D). The gradient of h before the span goes to the carry."""
        assert carry.behind is not None
        behind = carry.behind.reshape(self.size)
        with ctx.frame():
            bound, before = self._bound(ctx, w), ctx.floats("h before a sequence", self.size)
            for rows, _ in reversed(list(ctx.span.sequences)):
                began = not ctx.span.positions[rows.start]
                if began:
                    ctx.ops.fill(before, 0)
                else:
                    ctx.ops.cast(carry.start(ctx.span).reshape(self.size), before)
                ctx.ops.gated_recurrence_backward(
                    dh[rows], i[rows], f[rows], bound, before, h[rows], behind, di[rows], df[rows]
                )
                if began:  # what is behind the sequence before it is another sequence
                    ctx.ops.fill(behind, 0)

    def _project(self, ctx: Context, x: Array, w: BlockWeights, outs: Mapping[str, Array]) -> None:
        """Fill `outs`, projection -> (T, D), float32, from x (T, D)."""
        with ctx.frame():
            n = self._normed(ctx, x, w)
            for name, out in outs.items():
                BitLinear.of(w, name).run(ctx, n, out)

    def _normed(self, ctx: Context, x: Array, w: BlockWeights) -> Array:
        """Return n (T, D) = rms(x) g, float32, because the quantisers read it."""
        n = ctx.floats("n1", *x.shape)
        ctx.ops.rms_norm(x, w.vectors[self.pre_norm], self.eps, n)
        return n

    def _gated(self, ctx: Context, g: Array, h: Array, w: BlockWeights, o: Array) -> None:
        """o (T, D) = rms(g) w silu(h)."""
        with ctx.frame():
            (c,) = self._rooms(ctx, "c")
            ctx.ops.rms_norm(g, w.vectors[OUTPUT_NORM], self.eps, c)
            ctx.ops.glu(h, c, o, "silu")

    def _bound(self, ctx: Context, w: BlockWeights) -> Array:
        """Return lb (D,): zeros if the model has none."""
        if self.bounded:
            return w.vectors[BOUND]
        bound = ctx.floats("no lower bound", self.size)
        ctx.ops.fill(bound, 0)
        return bound

    def _rooms(self, ctx: Context, *names: str) -> tuple[Array, ...]:
        """Allocate arrays (T, D), float32, in the current frame."""
        return tuple(ctx.floats(name, ctx.tokens, self.size) for name in names)

    def _room_for_output(self, ctx: Context, w: BlockWeights) -> Array | None:
        return ctx.floats("output of o_proj", ctx.tokens, self.size) if w.projections[OUT].needs_output else None
