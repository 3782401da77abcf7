"""Norms, rotations and gated units in one pass on a GPU: Triton kernels that read and write each number once.

`units` does the same with operations of PyTorch. Rows may be apart (`stride`); the elements of a row are side by side.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 1024
"""Columns of a gated unit for each program."""
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "relu2": 2, "gelu": 3}


@triton.jit
def _activation(g, KIND: tl.constexpr):
    """Return an activation and its derivative."""
    if KIND == 0:
        s = tl.sigmoid(g)
        value, slope = g * s, s * (1 + g * (1 - s))
    elif KIND == 1:
        w = 0.7978845608028654 * (g + 0.044715 * g * g * g)
        dw = 0.7978845608028654 * (1 + 0.134145 * g * g)
        s = tl.sigmoid(2 * w)
        value, slope = g * s, s + g * 2 * s * tl.sigmoid(-2 * w) * dw
    elif KIND == 3:
        c = 0.5 * (1 + tl.erf(0.7071067811865476 * g))
        value, slope = g * c, c + g * 0.3989422804014327 * tl.exp(-0.5 * g * g)
    else:
        r = tl.maximum(g, 0.0)
        value, slope = r * r, 2 * r
    return value, slope


@triton.jit
def _glu(
    gate, up, out, cols, gate_stride, up_stride, out_stride,
    KIND: tl.constexpr, UP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, col = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = col < cols
    value, _ = _activation(tl.load(gate + row * gate_stride + col, inside, 0.0).to(tl.float32), KIND)
    if UP:
        value *= tl.load(up + row * up_stride + col, inside, 0.0).to(tl.float32)
    tl.store(out + row * out_stride + col, value.to(out.dtype.element_ty), inside)


@triton.jit
def _glu_backward(
    da, gate, up, dgate, dup, a, cols, da_stride, gate_stride, up_stride, dgate_stride, dup_stride, a_stride,
    KIND: tl.constexpr, UP: tl.constexpr, A: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, col = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = col < cols
    value, slope = _activation(tl.load(gate + row * gate_stride + col, inside, 0.0).to(tl.float32), KIND)
    d = tl.load(da + row * da_stride + col, inside, 0.0).to(tl.float32)
    of_gate, product = d * slope, value
    if UP:
        u = tl.load(up + row * up_stride + col, inside, 0.0).to(tl.float32)
        of_gate, product = of_gate * u, value * u
        tl.store(dup + row * dup_stride + col, (d * value).to(dup.dtype.element_ty), inside)
    tl.store(dgate + row * dgate_stride + col, of_gate.to(dgate.dtype.element_ty), inside)
    if A:
        tl.store(a + row * a_stride + col, product.to(a.dtype.element_ty), inside)


@triton.jit
def _rms_norm(x, weight, out, n, eps, x_stride, out_stride, ADD: tl.constexpr, WIDTH: tl.constexpr):
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * n
    col = tl.arange(0, WIDTH)
    inside = col < n
    values = tl.load(x + row * x_stride + first + col, inside, 0.0).to(tl.float32)
    normed = values / tl.sqrt(tl.sum(values * values, 0) / n + eps) * tl.load(weight + col, inside, 0.0)
    to = out + row * out_stride + first + col
    if ADD:
        normed += tl.load(to, inside, 0.0).to(tl.float32)
    tl.store(to, normed.to(out.dtype.element_ty), inside)


@triton.jit
def _rms_norm_backward(
    dn, x, weight, dx, n, eps, dn_stride, x_stride, dx_stride, ADD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * n
    col = tl.arange(0, WIDTH)
    inside = col < n
    values = tl.load(x + row * x_stride + first + col, inside, 0.0).to(tl.float32)
    rstd = 1 / tl.sqrt(tl.sum(values * values, 0) / n + eps)
    g = tl.load(dn + row * dn_stride + first + col, inside, 0.0).to(tl.float32) * tl.load(weight + col, inside, 0.0)
    u = values * rstd
    found = rstd * (g - u * (tl.sum(g * u, 0) / n))
    to = dx + row * dx_stride + first + col
    if ADD:
        found += tl.load(to, inside, 0.0).to(tl.float32)
    tl.store(to, found.to(dx.dtype.element_ty), inside)


@triton.jit
def _rope(
    x, cos, sin, out, n, head_dim, sign, x_stride, out_stride, STEP: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * head_dim
    pair = tl.arange(0, WIDTH)
    inside = pair < n
    c, s = tl.load(cos + row * n + pair, inside, 0.0), sign * tl.load(sin + row * n + pair, inside, 0.0)
    at = first + pair * STEP
    other = at + (1 if STEP == 2 else n)
    a = tl.load(x + row * x_stride + at, inside, 0.0).to(tl.float32)
    b = tl.load(x + row * x_stride + other, inside, 0.0).to(tl.float32)
    tl.store(out + row * out_stride + at, (a * c - b * s).to(out.dtype.element_ty), inside)
    tl.store(out + row * out_stride + other, (b * c + a * s).to(out.dtype.element_ty), inside)


def glu(gate: Tensor, up: Tensor | None, out: Tensor, activation: str) -> None:
    arrays = (gate, gate if up is None else up, out)
    grid = (len(gate), triton.cdiv(gate.shape[1], COLUMNS))
    _glu[grid](*arrays, gate.shape[1], *_strides(arrays), ACTIVATIONS[activation], up is not None, COLUMNS)


def glu_backward(
    da: Tensor, gate: Tensor, up: Tensor | None, dgate: Tensor, dup: Tensor | None, activation: str,
    a: Tensor | None = None,
) -> None:  # fmt: skip
    arrays = (da, gate, gate if up is None else up, dgate, dgate if dup is None else dup, dgate if a is None else a)
    grid = (len(gate), triton.cdiv(gate.shape[1], COLUMNS))
    _glu_backward[grid](
        *arrays, gate.shape[1], *_strides(arrays), ACTIVATIONS[activation], up is not None, a is not None, COLUMNS
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor, *, accumulate: bool = False) -> None:
    n = weight.numel()
    grid, width = (len(x), x.shape[1] // n), triton.next_power_of_2(n)
    _rms_norm[grid](x, weight, out, n, eps, *_strides((x, out)), accumulate, width, num_warps=_warps(width))


def rms_norm_backward(
    dn: Tensor, x: Tensor, weight: Tensor, eps: float, dx: Tensor, *, accumulate: bool = True
) -> None:
    n = weight.numel()
    grid, width = (len(x), x.shape[1] // n), triton.next_power_of_2(n)
    _rms_norm_backward[grid](
        dn, x, weight, dx, n, eps, *_strides((dn, x, dx)), accumulate, width, num_warps=_warps(width)
    )


def rope(
    x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, head_dim: int, interleaved: bool, *, inverse: bool = False
) -> None:
    n = cos.shape[1]
    grid, width = (len(x), x.shape[1] // head_dim), triton.next_power_of_2(n)
    _rope[grid](
        x, cos, sin, out, n, head_dim, -1.0 if inverse else 1.0, *_strides((x, out)), 2 if interleaved else 1, width
    )
    if 2 * n < head_dim and x.data_ptr() != out.data_ptr():
        out.unflatten(1, (-1, head_dim))[..., 2 * n :] = x.unflatten(1, (-1, head_dim))[..., 2 * n :]


def _strides(arrays: tuple[Tensor, ...]) -> list[int]:
    """Return the distances between rows."""
    return [each.stride(0) for each in arrays]


def _warps(width: int) -> int:
    return min(16, max(1, width // 256))
