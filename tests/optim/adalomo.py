"""The reference for AdaLomo: algorithm 1 of the paper, with unfactored vectors as in the authors' code."""

from __future__ import annotations

import torch

from tests.optim.per_tensor import Whole


def adalomo(whole: Whole, lr: float, weight_decay: float = 0.0) -> None:
    p, g = whole.p, whole.g
    beta = 1 - whole.step**-0.8
    squares = g**2 + 1e-30
    if p.shape[0] == 1:
        v = whole.remembered("v", *p.shape)
        v.copy_(beta * v + (1 - beta) * squares)
    else:
        r, c = whole.remembered("r", p.shape[0], 1), whole.remembered("c", 1, p.shape[1])
        r.copy_(beta * r + (1 - beta) * squares.mean(dim=1, keepdim=True))
        c.copy_(beta * c + (1 - beta) * squares.mean(dim=0, keepdim=True))
        v = r @ c / r.mean()
    u = g / torch.sqrt(v)
    u /= max(1.0, u.square().mean().sqrt().item())
    s = lr * max(1e-3, p.square().mean().sqrt().item())
    p.mul_(1 - s * weight_decay).sub_(s * u)
