"""The MLP half of a block, tiled over F so that nothing of size T x F exists.

Forward:   n = rms(m) g;   a = silu(gate(n)) * up(n);   y = m + down(a)
A tile takes columns [f0, f1) of F: rows of gate and up, columns of down, and the matching slices of their LoRA pairs.
All T tokens go through a tile at once, so every weight is unpacked once a pass. See docs/derivations/mlp.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.backprop.context import Context
from featherback.backprop.linear import LoRAFactors, Projection, add_outer

Array = NDArray[Any]
Float32 = NDArray[np.float32]
Projections = dict[str, Projection]


@dataclass(frozen=True)
class MLPState:
    """The forward pass's outputs of gate and up, whole."""

    gate: Float32  # (T, F)
    up: Float32  # (T, F)

    @classmethod
    def take(cls, store: Context) -> MLPState:
        """Uninitialised, from the arena of `store`."""
        shape = (store.tokens, store.config.intermediate_size)
        return cls(store.floats(*shape), store.floats(*shape))

    def tile(self, f0: int, f1: int) -> tuple[Float32, Float32]:
        """Columns [f0, f1) of both."""
        return self.gate[:, f0:f1], self.up[:, f0:f1]


def forward(ctx: Context, m: Float32, norm: Float32, p: Projections, state: MLPState | None = None) -> None:
    """m (T, D) becomes the block's output y in place; `state`, if given, is filled."""
    c = ctx.config
    with ctx.arena.frame():
        n = ctx.operands(ctx.tokens, c.hidden_size)
        kernels.rms_norm(m, norm, c.rms_norm_eps, n)
        h_gate, h_up = p["gate_proj"].down(ctx, n), p["up_proj"].down(ctx, n)
        h_down = accumulator(ctx, p["down_proj"])
        for f0, f1 in tiles(c.intermediate_size, ctx.mlp_tile):
            gate, up, down = tile(p, f0, f1)
            with ctx.arena.frame():
                g, u = _place(ctx, state, f0, f1)
                a = ctx.operands(ctx.tokens, f1 - f0)
                gate.forward(n, h_gate, g)
                up.forward(n, h_up, u)
                kernels.glu(g, u, a, "silu")
                add_down(a, down.lora, h_down)
                h = finished(ctx, h_down) if f1 == c.intermediate_size else None
                kernels.linear(
                    a,
                    down.weight,
                    m,
                    h=h,
                    b=down.lora.bt if h is not None and down.lora else None,
                    accumulate=True,
                )


def backward(
    ctx: Context, dy: Float32, m: Array, norm: Float32, p: Projections, state: MLPState | None = None
) -> None:
    """dy (T, D), the gradient of y = m + mlp(m), becomes the gradient of m in place.

    Gate and up are recomputed tile by tile unless `state` has them; no product of `down` is ever redone.
    """
    c = ctx.config
    down = p["down_proj"]
    with ctx.arena.frame():
        n, dy_operand = ctx.operands(ctx.tokens, c.hidden_size), ctx.operands(ctx.tokens, c.hidden_size)
        kernels.rms_norm(m, norm, c.rms_norm_eps, n)
        kernels.cast(dy, dy_operand)
        dn = ctx.floats(ctx.tokens, c.hidden_size)
        h = {name: p[name].down(ctx, n) for name in ("gate_proj", "up_proj")}
        dh = {name: accumulator(ctx, p[name]) for name in ("gate_proj", "up_proj")}
        h_down, dh_down = accumulator(ctx, down), down.backward_down(ctx, dy_operand)
        for f0, f1 in tiles(c.intermediate_size, ctx.mlp_tile):
            parts = dict(zip(("gate_proj", "up_proj", "down_proj"), tile(p, f0, f1)))
            with ctx.arena.frame():
                shape = (ctx.tokens, f1 - f0)
                dg, du = ctx.operands(*shape), ctx.operands(*shape)
                with ctx.arena.frame():
                    g, u = _place(ctx, state, f0, f1)
                    lora = parts["down_proj"].lora
                    da, a = ctx.floats(*shape), ctx.operands(*shape)
                    if state is None:
                        parts["gate_proj"].forward(n, h["gate_proj"], g)
                        parts["up_proj"].forward(n, h["up_proj"], u)
                    # y = m + a W^T + (s a A^T) B^T
                    parts["down_proj"].backward_input(dy_operand, dh_down, da)
                    # a = silu(g) * u
                    kernels.glu_backward(da, g, u, dg, du, "silu", a if lora is not None else None)
                    add_down(a, lora, h_down)
                    if lora is not None:
                        add_outer(dh_down, a, lora.da)
                for name, gradient in (("gate_proj", dg), ("up_proj", du)):
                    first = f0 == 0 and name == "gate_proj"
                    backward_outputs(parts[name], h[name], gradient, dh[name], dn, accumulate=not first)
        _finish_down(ctx, down, h_down, dy_operand)
        for name in ("gate_proj", "up_proj"):
            finish_input(ctx, p[name], dh[name], n, dn)
        kernels.rms_norm_backward(dn, m, norm, c.rms_norm_eps, dy)


def _place(ctx: Context, state: MLPState | None, f0: int, f1: int) -> tuple[Float32, Float32]:
    """Where a tile of gate and up lies: two arrays (T, f1 - f0)."""
    if state is not None:
        return state.tile(f0, f1)
    return ctx.floats(ctx.tokens, f1 - f0), ctx.floats(ctx.tokens, f1 - f0)


def backward_outputs(
    part: Projection, h: Array | None, dy: Array, dh: Float32 | None, dn: Float32, accumulate: bool
) -> None:
    """A tile of g = n W^T + h B^T: dn (+)= dy W, dh += s dy B, dB^T += h^T dy. dh A is added once dh is complete."""
    lora = part.lora
    add_up(dy, lora, dh)
    if lora is not None:
        add_outer(h, dy, lora.dbt)
    kernels.linear_backward(dy, part.weight, dn, accumulate=accumulate)


def tiles(size: int, step: int) -> Iterator[tuple[int, int]]:
    """[first, last) ranges of at most `step` that cover `size`."""
    for first in range(0, size, step):
        yield first, min(size, first + step)


def tile(p: Projections, f0: int, f1: int) -> tuple[Projection, Projection, Projection]:
    """Columns [f0, f1) of F: outputs of gate and up, inputs of down."""
    if (f0, f1) == (0, p["down_proj"].weight.shape[1]):
        return p["gate_proj"], p["up_proj"], p["down_proj"]

    def outputs(projection: Projection) -> Projection:
        lora = projection.lora
        if lora is not None:
            dbt = None if lora.dbt is None else lora.dbt[:, f0:f1]
            lora = LoRAFactors(lora.a, lora.bt[:, f0:f1], lora.scale, lora.da, dbt)
        return Projection(projection.weight.slice(rows=(f0, f1)), None, lora)

    down = p["down_proj"]
    lora = down.lora
    if lora is not None:
        da = None if lora.da is None else lora.da[:, f0:f1]
        lora = LoRAFactors(lora.a[:, f0:f1], lora.bt, lora.scale, da, lora.dbt)
    inputs = Projection(down.weight.slice(cols=(f0, f1)), None, lora)
    return outputs(p["gate_proj"]), outputs(p["up_proj"]), inputs


def accumulator(ctx: Context, projection: Projection) -> Float32 | None:
    """Zeros (T, r) for a T x r product whose long side comes in tiles."""
    if projection.lora is None:
        return None
    total = ctx.floats(ctx.tokens, len(projection.lora.a))
    total.fill(0)
    return total


def add_down(x: Array, lora: LoRAFactors | None, total: Float32 | None) -> None:
    """total (T, r) += s x A^T for a tile of x's columns."""
    if lora is not None and total is not None:
        kernels.lora_in(x, lora.a, total, lora.scale, accumulate=True)


def add_up(dy: Array, lora: LoRAFactors | None, total: Float32 | None) -> None:
    """total (T, r) += s dy B for a tile of dy's columns."""
    if lora is not None and total is not None:
        kernels.lora_in(dy, lora.bt, total, lora.scale, accumulate=True)


def finished(ctx: Context, total: Float32 | None) -> Array | None:
    """The accumulated (T, r) as an operand."""
    if total is None or total.dtype == ctx.operand:
        return total
    operand = ctx.operands(*total.shape)
    kernels.cast(total, operand)
    return operand


def _finish_down(ctx: Context, down: Projection, h_down: Float32 | None, dy: Array) -> None:
    if down.lora is not None:
        add_outer(finished(ctx, h_down), dy, down.lora.dbt)


def finish_input(ctx: Context, projection: Projection, total: Float32 | None, n: Array, dn: Float32) -> None:
    """dn += dh A and dA += dh^T n, once dh is complete."""
    lora, dh = projection.lora, finished(ctx, total)
    if lora is None or dh is None:
        return
    kernels.linear_backward(dh, _dense(lora.a), dn, accumulate=True)
    add_outer(dh, n, lora.da)


def _dense(factor: Float32) -> kernels.Matrix:
    """A contiguous float32 factor (r, in) as a weight."""
    return kernels.Matrix(factor.reshape(-1).view(np.uint8), 0, *factor.shape)
