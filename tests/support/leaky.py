"""A branch made up for tests: a leaky sum over the tokens, so that a state passes from one chunk to the next.

n = rms(x) g, or x;   p = lin_in(n);   s_t = p_t + LEAK s_{t-1} within a sequence;   y = x + lin_out(s)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from featherback.engine.backend.protocol import Array
from featherback.nn.branch import Branch, Remembered
from featherback.nn.context import Context
from featherback.nn.kept import NOTHING, Intermediate, Kept
from featherback.nn.linear import BlockWeights, norm_backward, normed

LEAK = 0.75


class Carry:
    """s before a span, and in the backward pass: before each chunk, and what its last row's gradient lacks."""

    def __init__(self, state: Array, starts: Array = None, ds: Array = None, chunk: int = 0) -> None:
        self.state, self.starts, self.ds, self.chunk = state, starts, ds, chunk  # (1, K), (chunks, K), (1, K)

    def start(self, ctx: Context) -> Array:
        """s before the span (1, K), in the backward pass."""
        number = ctx.span.start // self.chunk
        return self.starts[number : number + 1]


class Leaky(Branch):
    """`inward` (K, D) and `outward` (D, K): the projections; `biases`: of which of them there is one."""

    def __init__(
        self, inward: str, outward: str, size: int, width: int, norm: str | None, eps: float, biases: tuple[str, ...]
    ) -> None:
        self.inward, self.outward, self.size, self.norm, self.eps = inward, outward, size, norm, eps
        self.projections = {inward: (size, width), outward: (width, size)}
        self.vectors = {} if norm is None else {norm: (width,)}
        self.vectors |= {f"{name.removesuffix('_proj')}_bias": (self.projections[name][0],) for name in biases}
        self.input, self.output = f"{inward} in", f"{outward} out"
        self.intermediates, self.bundles = {self.output: Intermediate(width)}, []
        self.remembered = {"state": Remembered(size, rows=1)}

    def carry(self, ctx: Context, tokens: int, kept: Kept, *, backward: bool) -> Carry:
        state = ctx.floats("s before", 1, self.size)
        if not backward:
            return Carry(state)
        starts = ctx.floats("s before chunks", -(-tokens // ctx.tokens), self.size)
        ds = ctx.floats("ds from behind", 1, self.size)
        ctx.ops.fill(ds, 0)
        return Carry(state, starts, ds, ctx.tokens)

    def resumed(self, arrays: Mapping[str, Array]) -> Carry:
        return Carry(arrays["state"])

    def rebuild(self, ctx: Context, x: Callable[[], Array], w: BlockWeights, carry: Carry, kept: Kept) -> None:
        ctx.ops.cast(carry.state, carry.start(ctx))
        with ctx.frame():
            self._sums(ctx, x(), w, carry.state, ctx.operands("s", ctx.tokens, self.size), move=True)

    def forward(self, ctx: Context, x: Array, w: BlockWeights, carry: Carry, kept: Kept = NOTHING) -> Array:
        return self._sums(ctx, x, w, carry.state, ctx.operands("s", ctx.tokens, self.size), move=True)

    def recompute(self, ctx: Context, x: Array, w: BlockWeights, carry: Carry, kept: Kept = NOTHING) -> Array:
        return self._sums(ctx, x, w, carry.start(ctx), ctx.operands("s", ctx.tokens, self.size), move=False)

    def add_output(self, ctx: Context, state: Array, x: Array, w: BlockWeights) -> None:
        w.projections[self.outward].run(ctx, state, x, accumulate=True)

    def backward(self, ctx: Context, dy: Array, x: Array, state: Array, w: BlockWeights, carry: Carry) -> None:
        with ctx.frame():
            ds, leak = ctx.floats("ds", ctx.tokens, self.size), self._leak(ctx)
            with ctx.frame():
                operand = ctx.operands("dy, operand", *dy.shape)
                ctx.ops.cast(dy, operand)
                w.projections[self.outward].backward(ctx, state, operand, ds)
            self._add(ctx, carry.ds, None, ds[ctx.tokens - 1 :])
            for t in range(ctx.tokens - 1, 0, -1):
                if ctx.span.positions[t]:
                    self._add(ctx, ds[t : t + 1], leak, ds[t - 1 : t])
            self._leave_to_previous_span(ctx, ds, leak, carry)
            dp = ctx.operands("dp", *ds.shape)
            ctx.ops.cast(ds, dp)
            n = normed(ctx, "n", x, w, self.norm, self.eps)
            dn = dy if self.norm is None else ctx.floats("dn", *dy.shape)
            w.projections[self.inward].backward(ctx, n, dp, dn, accumulate=dn is dy)
            if self.norm is not None:
                norm_backward(ctx, dn, x, w, self.norm, self.eps, dy)

    def _leave_to_previous_span(self, ctx: Context, ds: Array, leak: Array, carry: Carry) -> None:
        """The chunk before has its last row's gradient from this one's first."""
        ctx.ops.fill(carry.ds, 0)
        if ctx.span.positions[0]:
            self._add(ctx, ds[:1], leak, carry.ds)

    def _sums(self, ctx: Context, x: Array, w: BlockWeights, before: Array, out: Array, *, move: bool) -> Array:
        """out = s of a span of x (T, D); `before` (1, K): s before it, which moves behind it if `move`."""
        with ctx.frame():
            s, leak = ctx.floats("s, sum", *out.shape), self._leak(ctx)
            with ctx.frame():
                w.projections[self.inward].run(ctx, normed(ctx, "n", x, w, self.norm, self.eps), s)
            for t, position in enumerate(ctx.span.positions.tolist()):
                if position:
                    self._add(ctx, s[t - 1 : t] if t else before, leak, s[t : t + 1])
            ctx.ops.cast(s, out)
            if move:
                ctx.ops.cast(s[ctx.tokens - 1 :], before)
        return out

    def _leak(self, ctx: Context) -> Array:
        leak = ctx.floats("leak", self.size)
        ctx.ops.fill(leak, LEAK)
        return leak

    @staticmethod
    def _add(ctx: Context, x: Any, factors: Any, out: Any) -> None:
        ctx.ops.scale_columns(x, factors, out, accumulate=True)
