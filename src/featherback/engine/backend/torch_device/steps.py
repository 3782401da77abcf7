"""Operations of optimisers and of methods that draw random numbers, which are the same on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from featherback.core import noise
from featherback.engine.backend import levels
from featherback.engine.backend.cpu import CPUOperations
from featherback.engine.backend.torch_device.arrays import put, wide


def adamw(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, lr: float, beta1: float, beta2: float, eps: float,
    weight_decay: float, step: int, grad_scale: float,
) -> None:  # fmt: skip
    g = g * grad_scale
    m.mul_(beta1).add_(g, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    change = (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + eps)
    p.sub_(lr * (change + weight_decay * p))


def sgd(p: Tensor, g: Tensor, lr: float, weight_decay: float, grad_scale: float) -> None:
    p.sub_(lr * (grad_scale * g + weight_decay * p))


def over_norm(m: Tensor, squares: Tensor, dots: Tensor, factor: float, out: Tensor) -> None:
    out.copy_(m / (squares + factor * dots).sqrt())


def smallest(x: Tensor, count: int) -> float:
    return float(x.abs_().kthvalue(count).values)


def mark_small(x: Tensor, limit: float) -> None:
    x.copy_(x.abs() <= limit)


def negatives(x: Tensor) -> tuple[float, int]:
    below = x < 0
    return float(wide(torch.where(below, x, 0)).sum()), int(below.sum())


def replace_negatives(x: Tensor, value: float) -> None:
    x.masked_fill_(x < 0, value)


def orthonormal(x: Tensor, room: Tensor) -> None:
    x.copy_(torch.linalg.qr(x.cpu()).Q)


def add_normal(key: tuple[int, ...], factor: float, out: Tensor, *, weights: Tensor | None = None) -> None:
    drawn = torch.from_numpy(np.array(noise.normal(key, out.numel()))).to(out.device).view(out.shape)
    out.add_(factor * drawn if weights is None else factor * drawn * weights)


def drop(
    x: Tensor, key: tuple[int, ...], rate: float, corner: tuple[int, int], out: Tensor, *, accumulate: bool = False
) -> None:
    for rows, left in noise.kept(key, rate, corner, (x.shape[0], x.shape[1])):
        put(out[rows], x[rows] * torch.from_numpy(np.array(left)).to(x.device), accumulate)


def _on_host(operation: Callable[..., None]) -> Callable[..., None]:
    """Run an operation on copies of the arrays in the host's memory."""

    def run(*arguments: Any) -> None:
        copies = [each.cpu().numpy() if isinstance(each, Tensor) else each for each in arguments]
        operation(*copies)
        for each, values in zip(arguments, copies, strict=True):
            if isinstance(each, Tensor):
                each.copy_(torch.from_numpy(values))

    return run


pack, unpack, add_normals = _on_host(levels.pack), _on_host(levels.unpack), _on_host(CPUOperations.add_normals)
