"""The reference for APOLLO and APOLLO-Mini: algorithm 1 of the paper with the constants of the authors' code."""

from __future__ import annotations

from functools import partial
from typing import Any
from zlib import crc32

import torch

from featherback.core.noise import normal
from tests.optim.per_tensor import Whole


def adam(whole: Whole, g: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return the step without bias correction, and the correction."""
    m, v = whole.remembered("m", *g.shape), whole.remembered("v", *g.shape)
    m.copy_(0.9 * m + 0.1 * g)
    v.copy_(0.999 * v + 0.001 * g * g)
    return m / (v.sqrt() + 1e-6), (1 - 0.999**whole.step) ** 0.5 / (1 - 0.9**whole.step)


def apollo(
    whole: Whole, lr: float, *, mini: bool, update_gap: int = 200, weight_decay: float = 0.0, **more: Any
) -> None:
    p, g = whole.p, whole.g
    p.mul_(1 - lr * weight_decay)
    rows, cols = p.shape
    if rows == 1 or more.get("role") == "table":
        step, unbiased = adam(whole, g)
        p.sub_(lr * unbiased * step)
        return
    rank = 1 if mini else max(1, min(p.shape) // 4)
    shape = (rank, cols) if rows >= cols else (rows, rank)
    key = (crc32(b"apollo"), 0, (whole.step - 1) // update_gap, *whole.key)
    projection = torch.from_numpy(normal(key, shape[0] * shape[1])).double().reshape(shape) / rank**0.5
    sketch = g @ projection.T if rows >= cols else projection.T @ g
    normalised, unbiased = adam(whole, sketch)
    over = 1 if rows >= cols else 0
    if mini:
        factor = normalised.norm() / (sketch.norm() + 1e-8)
    else:
        factor = normalised.norm(dim=over, keepdim=True) / (sketch.norm(dim=over, keepdim=True) + 1e-8)
    scaled = factor * g
    before = whole.state.get("length")
    if before is not None:
        scaled = scaled / (max(scaled.norm() / (before + 1e-8), 1.01) / 1.01)
    whole.state["length"] = scaled.norm()
    p.sub_(lr * unbiased * (128 if mini else 1) ** 0.5 * scaled)


apollo_mini = partial(apollo, mini=True)
apollo_full = partial(apollo, mini=False)
