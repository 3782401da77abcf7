"""The output head of MatMul-free LM: a BitLinear layer after the last norm.

    logits = Q(rms(rms(x) g) g') W^T

g is the last norm, g' the inner norm of the layer. See `nn/bit_linear.py` for Q and its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from featherback.engine.backend.protocol import Array
from featherback.nn.bit_linear import EPS, quantised
from featherback.nn.context import Context
from featherback.nn.loss import Head


@dataclass(frozen=True)
class BitHead(Head):
    """A head whose weight is that of a BitLinear layer."""

    inner: Array = field(default_factory=lambda: np.empty(0, np.float32))  # g' (D,)

    def hidden(self, ctx: Context, x: Array, norm: Array, out: Array) -> None:
        """out (n, D), an operand = Q(rms(rms(x) g) g')."""
        with ctx.frame():
            n = ctx.floats("last norm", *x.shape)
            ctx.ops.rms_norm(x, norm, self.eps, n)
            ctx.ops.cast(quantised(ctx, n, ctx.backend.vector(self.inner)), out)

    def hidden_backward(self, ctx: Context, dh: Array, x: Array, dx: Array) -> None:
        """dx (n, D), float32, += the gradient of x from dh (n, D), where Q counts as the identity."""
        norm, inner = ctx.backend.vector(self.norm), ctx.backend.vector(self.inner)
        with ctx.frame():
            n, dn = (ctx.floats(name, *x.shape) for name in ("last norm", "gradient of the last norm"))
            ctx.ops.rms_norm(x, norm, self.eps, n)
            ctx.ops.rms_norm_backward(dh, n, inner, EPS, dn, accumulate=False)
            ctx.ops.rms_norm_backward(dn, x, norm, self.eps, dx)
