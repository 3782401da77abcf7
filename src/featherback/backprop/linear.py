"""One projection: a frozen, stored weight with an optional bias and an optional LoRA pair.

Forward:   h = s x A^T;   y = x W^T + b + h B^T
Backward:  dB^T = h^T dy;   dh = s dy B;   dA = dh^T x;   dx = dy W + dh A

`h` and `dh` carry the scale s; B is held transposed. See docs/derivations/linear.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.backprop.context import Context
from featherback.models.model import LayerWeights
from featherback.models.names import TARGETS

Array = NDArray[Any]
Float32 = NDArray[np.float32]
Pairs = dict[str, tuple[Float32, Float32]]


class LoRAFactors(NamedTuple):
    """A (r, in) and B^T (r, out), and where their gradients accumulate (None: they are not wanted)."""

    a: Float32
    bt: Float32
    scale: float
    da: Float32 | None = None
    dbt: Float32 | None = None


class Projection(NamedTuple):
    """y (T, out) = x (T, in) W^T + bias + LoRA. A tuple, which is made quickly: every tile has three."""

    weight: kernels.Matrix
    bias: Float32 | None = None
    lora: LoRAFactors | None = None

    def down(self, ctx: Context, x: Array) -> Array | None:
        """h (T, r) = s x A^T, an operand; None without LoRA."""
        if self.lora is None:
            return None
        h = ctx.operands(len(x), len(self.lora.a))
        kernels.lora_in(x, self.lora.a, h, self.lora.scale)
        return h

    def forward(self, x: Array, h: Array | None, out: Float32, accumulate: bool = False) -> None:
        """out (T, out) (+)= x W^T + bias + h B^T, with h from `down`."""
        kernels.linear(
            x,
            self.weight,
            out,
            bias=self.bias,
            h=h,
            b=self.lora.bt if self.lora else None,
            accumulate=accumulate,
        )

    def backward_down(self, ctx: Context, dy: Array) -> Array | None:
        """dh (T, r) = s dy B, an operand; None without LoRA."""
        if self.lora is None:
            return None
        dh = ctx.operands(len(dy), len(self.lora.a))
        kernels.lora_in(dy, self.lora.bt, dh, self.lora.scale)
        return dh

    def backward_input(self, dy: Array, dh: Array | None, dx: Float32, accumulate: bool = False) -> None:
        """dx (T, in) (+)= dy W + dh A, with dh from `backward_down`."""
        kernels.linear_backward(
            dy, self.weight, dx, dh=dh, a=self.lora.a if self.lora else None, accumulate=accumulate
        )

    def backward_factors(self, x: Array, h: Array | None, dy: Array, dh: Array | None) -> None:
        """dA += dh^T x and dB^T += h^T dy."""
        if self.lora is not None:
            add_outer(dh, x, self.lora.da)
            add_outer(h, dy, self.lora.dbt)


def add_outer(factor: Array | None, x: Array, into: Float32 | None) -> None:
    """into (r, n) += factor (T, r)^T x (T, n), if the gradient is wanted."""
    if factor is not None and into is not None:
        kernels.lora_gradient(factor, x, into, accumulate=True)


def projections(
    weights: LayerWeights, pairs: Pairs, scale: float, gradients: Pairs | None = None
) -> dict[str, Projection]:
    """The seven projections of a layer; `pairs` and `gradients` as from LoRA.view, only for the targets."""
    found = {}
    biases = {"q_proj": weights.q_bias, "k_proj": weights.k_bias, "v_proj": weights.v_bias}
    stored = weights.matrices()
    for target in TARGETS:
        lora = None
        if target in pairs:
            da, dbt = gradients[target] if gradients is not None else (None, None)
            lora = LoRAFactors(*pairs[target], scale, da, dbt)
        found[target] = Projection(kernels.matrix(stored[target]), biases.get(target), lora)
    return found
