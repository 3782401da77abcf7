"""A causal depthwise convolution within sequences, and its backward pass.

Forward:   u_t = sum over i < K of w_i p_{t-i}
Backward:  dp_t = sum over i < K of w_i du_{t+i}

Terms whose token is in another sequence are zero. w (D, K) has K taps for each column; a file stores w_0 last. The
carry is the K - 1 rows of p before a span and, in the backward pass, the K - 1 rows of du after it. See
docs/derivations/short_conv.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from featherback.engine.backend.protocol import Array
from featherback.nn.branch import Remembered
from featherback.nn.context import Context
from featherback.nn.linear import BlockWeights
from featherback.nn.span import Span

TAPS = "conv"


@dataclass(frozen=True)
class Rows:
    """The carry: R = K - 1 rows each."""

    before: Array  # (R, D): p of the tokens before the span
    starts: Array | None = None  # (R chunks, D): `before` of each chunk, in the backward pass
    behind: Array | None = None  # (R, D): du of the tokens after the span that belong to its last sequence, else 0
    chunk: int = 0

    def start(self, span: Span) -> Array:
        """Return the R rows of p before the span, in the backward pass."""
        first, count = span.start // self.chunk, len(self.before)
        assert self.starts is not None
        return self.starts[first * count : (first + 1) * count]


class Convolution:
    """A causal depthwise convolution of D = `size` columns with K = `taps` taps, at least 2. `name` is that of p."""

    def __init__(self, size: int, taps: int, name: str) -> None:
        self.size, self.taps, self.name = size, taps, name
        self.shape = (size, taps)
        self.remembered = {"p": Remembered(size, rows=taps - 1)}

    @property
    def rows(self) -> int:
        """R = K - 1, the number of earlier tokens that a token sees."""
        return self.taps - 1

    def carry(self, ctx: Context, tokens: int, *, backward: bool) -> Rows:
        """Return an array for the rows of p before a span.

        With `backward`, also return arrays for the rows of p before each chunk, and for du after the span.
        """
        rows = self.rows
        before = ctx.floats(f"{self.name} before", rows, self.size)
        if not backward:
            return Rows(before)
        starts = ctx.floats(f"{self.name} before chunks", -(-tokens // ctx.tokens) * rows, self.size)
        behind = ctx.floats("du from behind", rows, self.size)
        ctx.ops.fill(behind, 0)
        return Rows(before, starts, behind, ctx.tokens)

    def resumed(self, arrays: Mapping[str, Array]) -> Rows:
        """Return the carry of a decoder: the last K - 1 rows of p."""
        return Rows(arrays["p"])

    def note_start(self, ctx: Context, carry: Rows) -> None:
        """Note the rows of p before the span, for the backward pass."""
        ctx.ops.cast(carry.before, carry.start(ctx.span))

    def room(self, ctx: Context, before: Array) -> Array:
        """Return p (R + T, D): R rows from before the span, then room for its own.

        Rows before a sequence's start are zero.
        """
        rows = self.rows
        there = min(int(ctx.span.positions[0]), rows)
        p = ctx.floats(self.name, rows + ctx.tokens, self.size)
        if there < rows:
            ctx.ops.fill(p[: rows - there], 0)
        if there:
            ctx.ops.cast(before[rows - there :], p[rows - there : rows])
        return p

    def keep_last_rows(self, ctx: Context, p: Array, carry: Rows) -> None:
        """Keep the last R rows of p (R + T, D) for the next span."""
        ctx.ops.cast(p[ctx.tokens :], carry.before)

    def forward(self, ctx: Context, p: Array, taps: list[Array], u: Array) -> None:
        """u (T, D) = the convolution of p (R + T, D) with the taps of `read_taps`."""
        rows = self.rows
        ctx.ops.scale_columns(p[rows:], taps[0], u)
        for back in range(1, self.taps):
            for first, stop in self._reached(ctx.span, back):
                earlier = p[rows + first - back : rows + stop - back]
                ctx.ops.scale_columns(earlier, taps[back], u[first:stop], accumulate=True)

    def backward(
        self, ctx: Context, du: Array, p: Array, taps: list[Array], w: BlockWeights, carry: Rows, dp: Array
    ) -> None:
        """dp (T, D) from du (T + R, D), whose last R rows are room for those after the span."""
        tokens, ops = ctx.tokens, ctx.ops
        ops.cast(carry.behind, du[tokens:])
        if w.sink is not None:
            self._taps_gradient(ctx, du, p, w)
        ops.scale_columns(du[:tokens], taps[0], dp)
        for back in range(1, self.taps):
            for sequence, _ in ctx.span.sequences:
                stop = sequence.stop + (back if sequence.stop == tokens else 0)
                if sequence.start + back < stop:
                    earlier = dp[sequence.start : stop - back]
                    ops.scale_columns(du[sequence.start + back : stop], taps[back], earlier, accumulate=True)

    def leave_to_previous_span(self, ctx: Context, du: Array, carry: Rows) -> None:
        """Pass the first R rows of du to the span before. Rows outside that span's last sequence become zeros."""
        first, _ = next(ctx.span.sequences)
        rows = self.rows
        found = 0
        assert carry.behind is not None
        if ctx.span.positions[0]:
            found = rows if first.stop == ctx.tokens else min(rows, first.stop)
            ctx.ops.cast(du[:found], carry.behind[:found])
        if found < rows:
            ctx.ops.fill(carry.behind[found:], 0)

    def read_taps(self, ctx: Context, w: BlockWeights) -> list[Array]:
        """Return the taps w_i (D,), in the current frame. w_0 is that of a token itself, which files store last."""
        taps = ctx.floats("taps", self.taps, self.size)
        ctx.ops.transpose(w.vectors[TAPS], taps)
        return self._newest_first(taps)

    def _taps_gradient(self, ctx: Context, du: Array, p: Array, w: BlockWeights) -> None:
        """Give dw_i = sum over t of du_t p_{t-i} to the sink."""
        assert w.sink is not None
        rows = self.rows
        with ctx.frame():
            gradient, stored = ctx.floats("dw", self.taps, self.size), ctx.floats("dw, stored", self.size, self.taps)
            ctx.ops.fill(gradient, 0)
            for back, of_tap in enumerate(self._newest_first(gradient)):
                for first, stop in self._reached(ctx.span, back):
                    earlier = p[rows + first - back : rows + stop - back]
                    ctx.ops.column_dots(du[first:stop], earlier, of_tap)
            ctx.ops.transpose(gradient, stored)
            w.sink.vector(ctx, TAPS, stored.reshape(self.size * self.taps))

    def _reached(self, span: Span, back: int) -> Iterator[tuple[int, int]]:
        """Yield [first, stop): the rows of the span whose sequence has a token `back` places earlier.

        The first sequence has all its rows: the rows before the span are zero if it had not begun there.
        """
        for sequence, _ in span.sequences:
            first = sequence.start + (back if sequence.start else 0)
            if first < sequence.stop:
                yield first, sequence.stop

    def _newest_first(self, taps: Array) -> list[Array]:
        """Return the rows of (K, D), the last one first."""
        return [taps[i : i + 1].reshape(self.size) for i in range(self.taps)][::-1]
