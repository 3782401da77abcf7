"""A gated delta net (Yang et al., 2024, arXiv 2412.06464), a branch of a block.

Forward:   n = rms(x) g;   p, z, a, b = lin(n);   [q|k|v] = silu(convolution of p);   decay, beta = gates(a, b)
           q = q / (|q| sqrt(Dk)),  k = k / |k|
           per head   P = e^decay S;   d = beta (v - P^T k);   S = P + k d^T;   y = S^T q
           o = rms(y) g' silu(z), per head;   x += lin_out(o)

The state S (Dk, Dv) of a head begins with zeros in every sequence. The carry holds the states and the rows of p before
a span and, in a backward pass of several spans, their gradients, which later spans leave to earlier ones. The states
before all spans are noted outside the scratch memory until then.

Memory: p (T, 2 Hk Dk + Hv Dv), z, y (T, Hv Dv) and o are in the state, in the caller's frame. q, k and v are computed
again in the backward pass. The kernel keeps a head's state of every few tokens, in its own scratch. See
docs/derivations/delta_net.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from featherback.engine.backend.protocol import Array
from featherback.nn import convolution
from featherback.nn.branch import Branch, GroupedHeads, Remembered
from featherback.nn.context import Context
from featherback.nn.convolution import TAPS, Convolution
from featherback.nn.delta_gates import DeltaGates, Gates
from featherback.nn.kept import NOTHING, Intermediate, Kept
from featherback.nn.linear import BlockWeights, norm_backward, normed

QKV, Z, A, B, OUT = "qkv_proj", "z_proj", "a_proj", "b_proj", "delta_out_proj"
GAIN = "gain"  # of the norm before the output gate: a weight w, also in files whose other norms are 1 + w
LENGTH_EPS = 1e-6  # added to |q|^2 and |k|^2


Inward = tuple[str, Array, Array]
"""A projection, its product (T, out), float32, and the product's gradient, an operand."""


@dataclass(frozen=True)
class DeltaCarry:
    """The states (Hv, Dk Dv) and the convolution's rows. A batch of one span needs no states."""

    rows: convolution.Rows
    state: Array | None  # before the span
    gradient: Array | None = None  # of the states after the span, in the backward pass
    chunk: int = 0

    def note(self, ctx: Context) -> Array | None:
        """Note the states before the span for its backward pass, and return them; None if they are zero."""
        if self.state is None or ctx.noted is None or not ctx.span.positions[0]:
            return None
        ctx.noted.save(0, self.state, self._place(ctx), self.state)
        return self.state

    def start(self, ctx: Context) -> Array | None:
        """Return the states before the span, in the backward pass; None if they are zero."""
        if self.state is None or ctx.noted is None or not ctx.span.positions[0]:
            return None
        ctx.noted.load(0, self.state, self._place(ctx))
        return self.state

    def _place(self, ctx: Context) -> int:
        assert self.state is not None
        return ctx.span.start // self.chunk * len(self.state)


class DeltaState(NamedTuple):
    """What the output and the backward pass of a span need."""

    p: Array | None  # (R + T, C), the convolution's input; None in the forward pass, like z, a, b and y
    z: Array | None  # (T, Hv Dv)
    a: Array | None  # (T, Hv)
    b: Array | None  # (T, Hv)
    y: Array | None  # (T, Hv Dv)
    o: Array  # (T, Hv Dv), an operand
    out: Array | None  # (T, D): lin_out(o), if its adapter needs it


class DeltaNet(Branch):
    """A gated delta net of `k_heads` heads of q and k and `v_heads` of v, a multiple. `taps`: those of the convolution.

    `converted`: the weights are as in a GGUF file, where V head h belongs to K head h % k_heads, and A itself is
    stored; otherwise V heads of one K head are neighbours, and log(-A) is stored.
    """

    def __init__(
        self, *, hidden_size: int, k_heads: int, v_heads: int, k_dim: int, v_dim: int, taps: int, eps: float,
        converted: bool, pre_norm: str = "input_layernorm",
    ) -> None:  # fmt: skip
        self.k_heads, self.v_heads, self.k_dim, self.v_dim = k_heads, v_heads, k_dim, v_dim
        self.k_size, self.v_size, self.eps, self.pre_norm = k_heads * k_dim, v_heads * v_dim, eps, pre_norm
        self.size, self.tiled = 2 * self.k_size + self.v_size, converted
        self.convolution = Convolution(self.size, taps, "[q|k|v] before the convolution")
        self.gates = DeltaGates(v_heads, log=not converted)
        self.outputs = {QKV: self.size, Z: self.v_size, A: v_heads, B: v_heads}
        inward = {name: (size, hidden_size) for name, size in self.outputs.items()}
        self.projections = {**inward, OUT: (hidden_size, self.v_size)}
        self.vectors = {pre_norm: (hidden_size,), TAPS: self.convolution.shape, **self.gates.vectors, GAIN: (v_dim,)}
        self.input, self.output = "delta_in", "delta_out"
        self.intermediates, self.bundles = {self.output: Intermediate(hidden_size)}, []
        self.noted = Remembered(k_dim * v_dim, rows=v_heads)
        self.remembered = {**self.convolution.remembered, "state": self.noted}
        wide, single = GroupedHeads(k_heads, v_heads, v_dim), GroupedHeads(k_heads, v_heads, 1)
        self.grouped_rows = {QKV: wide.after(2 * self.k_size), Z: wide, A: single, B: single}
        self.grouped_columns = {OUT: wide}

    def carry(self, ctx: Context, tokens: int, kept: Kept, *, backward: bool) -> DeltaCarry:
        """Return arrays for the rows of p and the states before a span; with `backward` also for their gradients."""
        rows = self.convolution.carry(ctx, tokens, backward=backward)
        if ctx.tokens >= tokens:
            return DeltaCarry(rows, None)
        shape = self.remembered["state"].shape(tokens)
        state = ctx.floats("states", *shape)
        if not backward:
            return DeltaCarry(rows, state)
        gradient = ctx.floats("dS", *shape)
        ctx.ops.fill(gradient, 0)
        return DeltaCarry(rows, state, gradient, ctx.tokens)

    def resumed(self, arrays: Mapping[str, Array]) -> DeltaCarry:
        """Return the carry of a decoder: the last rows of p, and the states."""
        return DeltaCarry(self.convolution.resumed(arrays), arrays["state"])

    def rebuild(self, ctx: Context, x: Callable[[], Array], w: BlockWeights, carry: DeltaCarry, kept: Kept) -> None:
        """Note what is before the span, and compute what is before the next one."""
        self.convolution.note_start(ctx, carry.rows)
        before = carry.note(ctx)
        with ctx.frame():
            p, a, b = self._project(ctx, x(), w, carry.rows.before, (QKV, A, B))
            self._attend(ctx, w, p, a, b, before, None, carry.state)
            self.convolution.keep_last_rows(ctx, p, carry.rows)

    def forward(self, ctx: Context, x: Array, w: BlockWeights, carry: DeltaCarry, kept: Kept = NOTHING) -> DeltaState:
        """o = rms(y) g' silu(z). States and rows of p after the span go to the carry."""
        o, out = ctx.operands("o", ctx.tokens, self.v_size), self._room_for_output(ctx, w)
        with ctx.frame():
            p, z, a, b = self._project(ctx, x, w, carry.rows.before, (QKV, Z, A, B))
            y = ctx.floats("y", ctx.tokens, self.v_size)
            self._attend(ctx, w, p, a, b, carry.state if ctx.span.positions[0] else None, y, carry.state)
            ctx.ops.rms_norm(y, w.vectors[GAIN], self.eps, y)
            ctx.ops.gate(z, y, o, "silu")
            self.convolution.keep_last_rows(ctx, p, carry.rows)
        if out is not None:
            w.projections[OUT].run(ctx, o, out)
            if (place := kept.rows(self.output, ctx.span)) is not None:
                ctx.ops.cast(out, place)
        return DeltaState(None, None, None, None, None, o, out)

    def recompute(self, ctx: Context, x: Array, w: BlockWeights, carry: DeltaCarry, kept: Kept = NOTHING) -> DeltaState:
        """Like `forward`, with what `backward` needs."""
        p, z, a, b = self._project(ctx, x, w, carry.rows.start(ctx.span), (QKV, Z, A, B))
        y, o = ctx.floats("y", ctx.tokens, self.v_size), ctx.operands("o", ctx.tokens, self.v_size)
        self._attend(ctx, w, p, a, b, carry.start(ctx), y, None)
        with ctx.frame():
            unit = ctx.floats("rms(y) g", *y.shape)
            ctx.ops.rms_norm(y, w.vectors[GAIN], self.eps, unit)
            ctx.ops.gate(z, unit, o, "silu")
        out = kept.rows(self.output, ctx.span)
        if out is None and (out := self._room_for_output(ctx, w)) is not None:
            w.projections[OUT].run(ctx, o, out)
        return DeltaState(p, z, a, b, y, o, out)

    def add_output(self, ctx: Context, state: DeltaState, x: Array, w: BlockWeights) -> None:
        """x (T, D), float32, += lin_out(o)."""
        if state.out is not None:
            ctx.ops.scale_columns(state.out, None, x, accumulate=True)
        else:
            w.projections[OUT].run(ctx, state.o, x, accumulate=True)

    def backward(
        self, ctx: Context, dx: Array, x: Array, state: DeltaState, w: BlockWeights, carry: DeltaCarry
    ) -> None:
        """dx (T, D), float32, the gradient of x + lin_out(o), becomes the gradient of x in place."""
        assert state.p is not None
        with ctx.frame():
            shape = (ctx.tokens, self.v_size)
            dp, dz = ctx.operands("dp, operand", ctx.tokens, self.size), ctx.operands("dz, operand", *shape)
            da, db = (ctx.operands(f"d{name}, operand", ctx.tokens, self.v_heads) for name in "ab")
            with ctx.frame():
                dy = ctx.floats("dy", *shape)
                self._output_backward(ctx, dx, state, w, dy, dz)
                self._attend_backward(ctx, dy, state, w, carry, dp, da, db)
            # p, z, a, b = lin(n)
            n, dn = normed(ctx, "n1", x, w, self.pre_norm, self.eps), ctx.floats("dn1", *x.shape)
            for name, product, gradient in self._inward(ctx, state, dp, dz, da, db):
                projection = w.projections[name]
                projection.finish_backward(ctx, gradient, product)
                projection.backward(ctx, n, gradient, dn, accumulate=name != QKV)
            norm_backward(ctx, dn, x, w, self.pre_norm, self.eps, dx)

    def _inward(self, ctx: Context, state: DeltaState, dp: Array, dz: Array, da: Array, db: Array) -> list[Inward]:
        """Return the projections of n, with their products and these gradients. They may take room in the frame."""
        p = None if state.p is None else state.p[self.convolution.rows :]
        return [(QKV, p, dp), (Z, state.z, dz), (A, state.a, da), (B, state.b, db)]

    def _output_backward(
        self, ctx: Context, dx: Array, state: DeltaState, w: BlockWeights, dy: Array, dz: Array
    ) -> None:
        """dy (T, Hv Dv), float32, and dz, an operand, from x + lin_out(rms(y) g' silu(z))."""
        with ctx.frame():
            do = ctx.floats("do", *dy.shape)
            w.projections[OUT].add_output_backward(ctx, state.o, state.out, dx, do)
            unit, of_z = ctx.floats("rms(y) g", *dy.shape), ctx.floats("dz", *dy.shape)
            ctx.ops.rms_norm(state.y, w.vectors[GAIN], self.eps, unit)
            ctx.ops.gate_backward(do, state.z, unit, of_z, dy, "silu")
            ctx.ops.cast(of_z, dz)
        norm_backward(ctx, dy, state.y, w, GAIN, self.eps, dy, accumulate=False)

    def _attend_backward(
        self, ctx: Context, dy: Array, state: DeltaState, w: BlockWeights, carry: DeltaCarry, dp: Array, da: Array,
        db: Array,
    ) -> None:  # fmt: skip
        """dp (T, C), da and db (T, Hv), operands, from dy. The states' gradient goes to the previous span."""
        tokens, ops, inner = ctx.tokens, ctx.ops, self.convolution
        taps = inner.read_taps(ctx, w)
        du, qkv = ctx.floats("d[q|k|v]", tokens + inner.rows, self.size), ctx.floats("[q|k|v]", tokens, self.size)
        dq, dk, dv = self._parts(du[:tokens])
        with ctx.frame():
            gates = self.gates.forward(ctx, state.a, state.b, w)
            gradients = Gates(ctx.floats("ddecay", *gates.decay.shape), ctx.floats("dbeta", *gates.beta.shape))
            q, k, v = self._normed_parts(ctx, state.p, taps, qkv)
            ops.delta_rule_backward(
                dy, q, k, v, gates.decay, gates.beta, dq, dk, dv, gradients.decay, gradients.beta,
                self.k_heads, self.v_heads, self.tiled, ctx.span.cu_q, before=carry.start(ctx),
                dafter=carry.gradient, dbefore=carry.gradient,
            )  # fmt: skip
            of_a, of_b = (ctx.floats(f"d{name}", tokens, self.v_heads) for name in "ab")
            self.gates.backward(ctx, gradients, state.a, state.b, w, of_a, of_b)
            ops.cast(of_a, da)
            ops.cast(of_b, db)
        self._leave_to_previous_span(ctx, carry)
        # q = silu(u) / |silu(u)|: u is computed again, because its memory became q, k and v
        inner.forward(ctx, state.p, taps, qkv)
        with ctx.frame():
            unnormed = ctx.floats("silu of q or k", tokens, self.k_size)
            for u, length, gradient in zip(self._parts(qkv), self._lengths(ctx), (dq, dk)):
                ops.gate(u, None, unnormed, "silu")
                ops.rms_norm_backward(gradient, unnormed, length, LENGTH_EPS / self.k_dim, gradient, accumulate=False)
        ops.gate_backward(du[:tokens], qkv, None, du[:tokens], None, "silu")
        inner.backward(ctx, du, state.p, taps, w, carry.rows, qkv)
        ops.cast(qkv, dp)
        inner.leave_to_previous_span(ctx, du, carry.rows)

    def _leave_to_previous_span(self, ctx: Context, carry: DeltaCarry) -> None:
        """The kernel left the gradient of the states before the span. They are zeros if a sequence begins with it."""
        if carry.gradient is not None and not ctx.span.positions[0]:
            ctx.ops.fill(carry.gradient, 0)

    def _project(self, ctx: Context, x: Array, w: BlockWeights, before: Array, names: tuple[str, ...]) -> list[Array]:
        """Return the products of n with these projections: (T, out), float32, but p (R + T, C)."""
        found = []
        for name in names:
            if name == QKV:
                found.append(self.convolution.room(ctx, before))
            else:
                found.append(ctx.floats(name.removesuffix("_proj"), ctx.tokens, self.outputs[name]))
        with ctx.frame():
            n = normed(ctx, "n1", x, w, self.pre_norm, self.eps)
            for name, product in zip(names, found):
                own = product[self.convolution.rows :] if name == QKV else product
                w.projections[name].run(ctx, n, own)
        return found

    def _attend(
        self, ctx: Context, w: BlockWeights, p: Array, a: Array, b: Array, before: Array | None, y: Array | None,
        after: Array | None,
    ) -> None:  # fmt: skip
        """y (T, Hv Dv) and the states after the span, from p (R + T, C), a, b (T, Hv) and the states before it."""
        with ctx.frame():
            qkv = ctx.floats("[q|k|v]", ctx.tokens, self.size)
            q, k, v = self._normed_parts(ctx, p, self.convolution.read_taps(ctx, w), qkv)
            gates = self.gates.forward(ctx, a, b, w)
            ctx.ops.delta_rule(
                q, k, v, *gates, y, self.k_heads, self.v_heads, self.tiled, ctx.span.cu_q, before=before, after=after
            )

    def _normed_parts(self, ctx: Context, p: Array, taps: list[Array], qkv: Array) -> tuple[Array, Array, Array]:
        """Return q, k and v from p (R + T, C), in the memory of qkv (T, C)."""
        self.convolution.forward(ctx, p, taps, qkv)
        ctx.ops.gate(qkv, None, qkv, "silu")
        q, k, v = self._parts(qkv)
        for part, length in zip((q, k), self._lengths(ctx)):
            ctx.ops.rms_norm(part, length, LENGTH_EPS / self.k_dim, part)
        return q, k, v

    def _lengths(self, ctx: Context) -> tuple[Array, Array]:
        """Return the weights (Dk,) with which an RMS norm gives a head of q the length Dk^-1/2, and one of k 1."""
        of_q, of_k = ctx.floats("length of q", self.k_dim), ctx.floats("length of k", self.k_dim)
        ctx.ops.fill(of_q, 1 / self.k_dim)
        ctx.ops.fill(of_k, self.k_dim**-0.5)
        return of_q, of_k

    def _parts(self, qkv: Array) -> tuple[Array, Array, Array]:
        return qkv[:, : self.k_size], qkv[:, self.k_size : 2 * self.k_size], qkv[:, 2 * self.k_size :]

    def _room_for_output(self, ctx: Context, w: BlockWeights) -> Array | None:
        hidden = self.projections[OUT][0]
        return ctx.floats("output of delta_out_proj", ctx.tokens, hidden) if w.projections[OUT].needs_output else None
