"""Products with stored weights and with adapters. x, dy, h and dh are operands; sums are float32.

On a GPU, bf16 operands are multiplied by its matrix units, and sums stay float32. Elsewhere they become float32 first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from featherback.engine.backend.torch_device.arrays import put
from featherback.engine.backend.torch_device.weights import Dense, Weight

Handle = Weight | Dense


def multiply(x: Tensor, y: Tensor, out: Tensor, accumulate: bool, scale: float = 1.0) -> None:
    """out (n, m) (+)= scale * x (n, k) y (k, m), with y in the type of x."""
    types = {}
    if x.dtype != torch.float32 and x.is_cuda:
        types = {"out_dtype": torch.float32}
    else:
        x, y = x.float(), y.float()
    target = out if out.dtype == torch.float32 else torch.empty(out.shape, device=out.device)
    beta = int(accumulate and target is out)
    torch.addmm(target, x, y, beta=beta, alpha=scale, out=target, **types)
    if target is not out:
        put(out, target, accumulate)


def linear(
    x: Tensor, w: Handle, out: Tensor, *, bias: Tensor | None = None, h: Tensor | None = None, b: Tensor | None = None,
    accumulate: bool = False,
) -> None:  # fmt: skip
    for rows, tile in w.tiles(x.dtype):
        multiply(x, tile.T, out[:, rows], accumulate)
    if h is not None and b is not None:
        multiply(h, b.to(h.dtype), out, True)
    if bias is not None:
        out.add_(bias.reshape(-1))


def linear_backward(
    dy: Tensor, w: Handle, dx: Tensor, *, dh: Tensor | None = None, a: Tensor | None = None, accumulate: bool = False
) -> None:
    for rows, tile in w.tiles(dy.dtype):
        multiply(dy[:, rows], tile, dx, accumulate)
        accumulate = True
    if dh is not None and a is not None:
        multiply(dh, a.to(dh.dtype), dx, True)


def dequantize(w: Handle, out: Tensor) -> None:
    for rows, tile in w.tiles(out.dtype):
        out[rows].copy_(tile)


def lora_in(x: Tensor, a: Tensor, h: Tensor, scale: float, *, accumulate: bool = False) -> None:
    multiply(x, a.to(x.dtype).T, h, accumulate, scale)


def lora_gradient(dh: Tensor, x: Tensor, da: Tensor, scale: float = 1.0, *, accumulate: bool = False) -> None:
    multiply(dh.T, x, da, accumulate, scale)


def lora_in_parts(
    x: Tensor, parts: Sequence[tuple[int, int, Tensor, float]], h: Tensor, *, accumulate: bool = False
) -> None:
    for first, last, a, scale in parts:
        lora_in(x[first:last], a, h[first:last, : len(a)], scale, accumulate=accumulate)


def lora_out_parts(h: Tensor, parts: Sequence[tuple[int, int, Tensor]], out: Tensor) -> None:
    for first, last, b in parts:
        multiply(h[first:last, : len(b)], b.to(h.dtype), out[first:last], True)
