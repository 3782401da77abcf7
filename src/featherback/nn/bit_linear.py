"""BitLinear, the linear layer of MatMul-free LM: a norm and a quantiser of its own before the product.

Forward:   n = rms(x) g';   q = Q(n);   y = q W^T + h b
Backward:  dq = dy W;   dn = dq;   dx = the gradient of rms from dn, plus the gradient through h

Q rounds each row to 8 bits (`round_rows`). W is ternary, scale * {-1, 0, 1}; the model's folder is converted when it is
opened. Rounding has no useful derivative, so Q and the rounding of W count as identities: this is the gradient of the
straight-through estimator with which such models are trained. The adapter reads x, before norm and quantiser, because
PEFT wraps the whole layer. See docs/derivations/mlgru.md.
"""

from __future__ import annotations

from typing import NamedTuple

from featherback.engine.backend.protocol import Array
from featherback.nn.context import Context
from featherback.nn.linear import BlockWeights, Projection

EPS = 1e-6
"""The eps of the inner norm: the fused layer with which the models were trained has its own."""


class BitLinear(NamedTuple):
    """A projection with its inner norm. x and dx (T, in) are float32; dy (T, out) is an operand."""

    projection: Projection
    norm: Array  # g' (in,)

    @classmethod
    def of(cls, w: BlockWeights, name: str) -> BitLinear:
        """Return the layer whose projection is `name`. Its norm is named after it: i_norm for i_proj."""
        return cls(w.projections[name], w.vectors[norm_of(name)])

    def run(self, ctx: Context, x: Array, out: Array, *, accumulate: bool = False) -> None:
        """out (T, out) (+)= y. `accumulate` is not allowed if the adapter changes the output."""
        projection = self.projection
        assert not accumulate or not projection.needs_output
        with ctx.frame():
            h = None if projection.adapter is None else projection.read(ctx, as_operand(ctx, x))
            self._product(ctx, self._changed(ctx, x), h, out, accumulate=accumulate)
            projection.finish(ctx, out)
        ctx.release(projection.weight)

    def backward(self, ctx: Context, x: Array, dy: Array, dx: Array, *, accumulate: bool = False) -> None:
        """dx (T, in) (+)= the gradient of x, from dy after `scale_gradient`. Gradients of the adapter are added."""
        projection, adapter = self.projection, self.projection.adapter
        with ctx.frame():
            dh = None
            if adapter is not None:
                read = as_operand(ctx, x)
                h, dh = projection.allocate_h(ctx, len(x)), projection.read_backward(ctx, dy)
                adapter.read(ctx, read, h, dh)
                adapter.collect_b(ctx, h, dy)
            changed = self._changed(ctx, x)
            if adapter is not None and adapter.reads_product:
                u, du = ctx.floats("product", *dy.shape), ctx.operands("gradient of the product", *dy.shape)
                self._product(ctx, changed, None, u)
                adapter.product_backward(ctx, u, dy, du)
                dy = du
            # y = Q(rms(x) g') W^T, where Q counts as the identity
            dn = ctx.floats("gradient of an inner norm", *x.shape)
            ctx.ops.linear_backward(dy, projection.weight, dn)
            if adapter is not None and adapter.changes_input:
                ctx.ops.rms_norm_backward(dn, changed, self.norm, EPS, dn, accumulate=False)
                adapter.change_backward(ctx, x, dn, dx, accumulate=accumulate)
            else:
                ctx.ops.rms_norm_backward(dn, x, self.norm, EPS, dx, accumulate=accumulate)
            if adapter is not None and dh is not None:
                adapter.add_to_input(ctx, dh, dx)
        ctx.release(projection.weight)

    def _changed(self, ctx: Context, x: Array) -> Array:
        """Return the input of the inner norm (T, in): x, unless the adapter changes it."""
        adapter = self.projection.adapter
        return adapter.change(ctx, x) if adapter is not None and adapter.changes_input else x

    def _product(self, ctx: Context, x: Array, h: Array | None, out: Array, *, accumulate: bool = False) -> None:
        """out (T, out) (+)= Q(rms(x) g') W^T + h b."""
        adapter = self.projection.adapter
        b = None if h is None or adapter is None else adapter.b
        with ctx.frame():
            q = quantised(ctx, x, self.norm)
            ctx.ops.linear(q, self.projection.weight, out, h=h, b=b, accumulate=accumulate)


def norm_of(projection: str) -> str:
    """Return the name of a projection's inner norm."""
    return f"{projection.removesuffix('_proj')}_norm"


def quantised(ctx: Context, x: Array, norm: Array) -> Array:
    """Return Q(rms(x) g') (T, n), an operand of the current frame. x (T, n) is float32 or an operand."""
    q = ctx.operands("inner norm, rounded", *x.shape)
    with ctx.frame():
        n = ctx.floats("inner norm", *x.shape)
        ctx.ops.rms_norm(x, norm, EPS, n)
        ctx.ops.round_rows(n, q)
    return q


def as_operand(ctx: Context, x: Array) -> Array:
    """Return x (T, n), float32, as an operand: itself, or a copy in the current frame."""
    if x.dtype == ctx.operand:
        return x
    operand = ctx.operands("input, operand", *x.shape)
    ctx.ops.cast(x, operand)
    return operand
