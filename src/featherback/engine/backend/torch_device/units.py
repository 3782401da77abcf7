"""Norms, rotations and gated units, forward and backward. Sums are float32."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from featherback.engine.backend.torch_device.arrays import put, uploaded


def _groups(x: Tensor, weight: Tensor) -> Tensor:
    """Return x (T, D) as (T, groups, n), float32, with n columns for each of the weights."""
    return x.float().unflatten(1, (-1, weight.numel()))


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor, *, accumulate: bool = False) -> None:
    normed = functional.rms_norm(_groups(x, weight), (weight.numel(),), weight.reshape(-1), eps)
    put(out, normed.flatten(1), accumulate)


def rms_norm_backward(
    dn: Tensor, x: Tensor, weight: Tensor, eps: float, dx: Tensor, *, accumulate: bool = True
) -> None:
    groups = _groups(x, weight)
    rstd = torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)
    g, u = dn.view(groups.shape) * weight.reshape(-1), groups * rstd
    put(dx, (rstd * (g - u * (g * u).mean(-1, keepdim=True))).flatten(1), accumulate)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
    bias = None if bias is None else bias.reshape(-1)
    out.copy_(functional.layer_norm(x.float(), (weight.numel(),), weight.reshape(-1), bias, eps))


def layer_norm_backward(
    dn: Tensor, x: Tensor, weight: Tensor, eps: float, dx: Tensor, *, accumulate: bool = True
) -> None:
    variance, mean = torch.var_mean(x.float(), -1, correction=0, keepdim=True)
    rstd = torch.rsqrt(variance + eps)
    g, u = dn * weight.reshape(-1), (x.float() - mean) * rstd
    put(dx, rstd * (g - g.mean(-1, keepdim=True) - u * (g * u).mean(-1, keepdim=True)), accumulate)


def rotary_table(
    inverse_frequencies: NDArray[np.float32], positions: NDArray[np.int32], cos: Tensor, sin: Tensor
) -> None:
    at, frequencies = (uploaded(each.astype(np.float32), cos.device) for each in (positions, inverse_frequencies))
    angles = at[:, None] * frequencies
    torch.cos(angles, out=cos)
    torch.sin(angles, out=sin)


def rope(
    x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, head_dim: int, interleaved: bool, *, inverse: bool = False
) -> None:
    heads, turned, n = x.unflatten(1, (-1, head_dim)), out.unflatten(1, (-1, head_dim)), cos.shape[1]
    pair = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (slice(n), slice(n, 2 * n))
    c, s = cos[:, None], -sin[:, None] if inverse else sin[:, None]
    a, b = heads[..., pair[0]], heads[..., pair[1]]
    first, second = a * c - b * s, b * c + a * s  # computed before out is written, which may be x
    turned[..., pair[0]], turned[..., pair[1]] = first, second
    if 2 * n < head_dim:
        turned[..., 2 * n :] = heads[..., 2 * n :]


def _silu(g: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(g)
    return g * s, s * (1 + g * (1 - s))


def _gelu(g: Tensor) -> tuple[Tensor, Tensor]:
    c = torch.special.ndtr(g)
    return g * c, c + g * torch.exp(-g * g / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh(g: Tensor) -> tuple[Tensor, Tensor]:
    root, cube = math.sqrt(2 / math.pi), 0.044715
    w, dw = root * (g + cube * g**3), root * (1 + 3 * cube * g * g)
    s = torch.sigmoid(2 * w)
    return g * s, s + g * 2 * s * torch.sigmoid(-2 * w) * dw


def _relu2(g: Tensor) -> tuple[Tensor, Tensor]:
    r = torch.relu(g)
    return r * r, 2 * r


CLIPPED, CLIP, GAIN = "clipped_silu", 7.0, 1.702
"""gpt-oss's unit also changes up: it is clipped, and 1 is added."""


def _clipped_silu(g: Tensor) -> tuple[Tensor, Tensor]:
    c = g.clamp(max=CLIP)
    s = torch.sigmoid(GAIN * c)
    return c * s, torch.where(g > CLIP, 0, s * (1 + GAIN * c * (1 - s)))


ACTIVATIONS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu2": _relu2,
    CLIPPED: _clipped_silu,
}
"""An activation and its derivative."""


def glu(gate: Tensor, up: Tensor | None, out: Tensor, activation: str) -> None:
    value, _ = ACTIVATIONS[activation](gate.float())
    if up is not None and activation == CLIPPED:
        up = up.clamp(-CLIP, CLIP) + 1
    out.copy_(value if up is None else value * up)


def glu_backward(
    da: Tensor, gate: Tensor, up: Tensor | None, dgate: Tensor, dup: Tensor | None, activation: str,
    a: Tensor | None = None,
) -> None:  # fmt: skip
    value, slope = ACTIVATIONS[activation](gate.float())
    of_up = None if up is None else da * value
    if up is not None and of_up is not None and activation == CLIPPED:
        of_up.masked_fill_(up.abs() > CLIP, 0)
        up = up.clamp(-CLIP, CLIP) + 1
    of_gate = da * slope if up is None else da * up * slope
    if a is not None:
        a.copy_(value if up is None else value * up)
    dgate.copy_(of_gate)
    if dup is not None and of_up is not None:
        dup.copy_(of_up)


def round_rows(x: Tensor, out: Tensor) -> None:
    scale = 127 / x.abs().amax(1, keepdim=True).clamp(min=1e-5)
    out.copy_((x * scale).round().clamp(-128, 127) / scale)


def hadamard(x: Tensor, size: int) -> None:
    values, step = x.reshape(-1, size), 1
    while step < size:
        pairs = values.view(len(values), -1, 2, step)
        values = torch.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), 2).view(-1, size)
        step *= 2
    x.copy_(values.view(x.shape) / math.sqrt(size))
