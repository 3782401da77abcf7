"""The reference for MLorc: algorithm 1 of the paper, with all three factors of a randomised SVD."""

from __future__ import annotations

from functools import partial
from zlib import crc32

import torch

from featherback.core.noise import normal
from tests.optim.per_tensor import Whole, by_torch


def randomised_svd(a: torch.Tensor, key: tuple[int, ...], rank: int) -> tuple[torch.Tensor, ...]:
    test = torch.from_numpy(normal(key, rank * a.shape[1])).double().reshape(rank, -1)
    q = torch.linalg.qr(a @ test.T).Q
    u, s, v = torch.linalg.svd(q.T @ a, full_matrices=False)
    return q @ u, s, v


def mlorc(whole: Whole, lr: float, weight_decay: float = 0.0) -> None:
    p, g = whole.p, whole.g
    if p.shape[0] == 1:
        return by_torch(partial(torch.optim.AdamW, eps=1e-8, weight_decay=weight_decay), whole, lr)
    rank = min(4, *p.shape)
    kept = []
    for name in ("m", "v"):
        u, s, v = whole.state.get(name, (torch.zeros(p.shape[0], 1), torch.zeros(1), torch.zeros(1, p.shape[1])))
        kept.append(u.double() @ torch.diag(s.double()) @ v.double())
    m, v = kept
    below = v < 0
    if below.any():
        v = torch.where(below, v[below].abs().mean(), v)
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    for number, (name, a) in enumerate((("m", m), ("v", v))):
        whole.state[name] = randomised_svd(a, (crc32(b"mlorc"), 0, whole.step, *whole.key, number), rank)
    p.mul_(1 - lr * weight_decay)
    p.sub_(lr * m / (1 - 0.9**whole.step) / ((v / (1 - 0.999**whole.step)).sqrt() + 1e-8))
