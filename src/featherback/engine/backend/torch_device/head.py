"""The end of a model: the online softmax over the vocabulary, its loss and gradient, and what objectives read of it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from featherback.engine.backend.torch_device.arrays import row_numbers, wide

Int32 = NDArray[np.int32]


def cross_entropy_tile(
    logits: Tensor, first: int, targets: Int32, reference: Tensor, sum: Tensor, target_logit: Tensor,
    p: Tensor | None = None, dh: Tensor | None = None, *, softcap: float = 0.0,
) -> None:  # fmt: skip
    """`sum` and `reference` do not include the target's own term."""
    capped = softcap * torch.tanh(logits / softcap) if softcap else logits.clone()
    here = (targets >= first) & (targets < first + logits.shape[1])
    at = row_numbers(np.flatnonzero(here), logits.device), row_numbers(targets[here] - first, logits.device)
    target_logit[at[0]] = capped[at]
    capped[at] = capped.new_full((), -torch.inf)
    top = torch.maximum(reference, capped.amax(1))
    shrunk = torch.where(reference.isneginf(), 0.0, torch.exp(reference - top))
    exponentials = torch.exp(capped - top[:, None])
    sum.mul_(shrunk).add_(exponentials.sum(1))
    reference.copy_(top)
    if p is not None and dh is not None:
        dh.mul_(shrunk[:, None])
        slope = (1 - (capped / softcap) ** 2).masked_fill_(capped.isneginf(), 0) if softcap else 1
        p.copy_(exponentials * slope)


def cross_entropy_finish(
    reference: Tensor, sum: Tensor, target_logit: Tensor, loss: Tensor, target_rows: Tensor | None = None,
    dh: Tensor | None = None, scale: float = 1.0, *, softcap: float = 0.0,
) -> None:  # fmt: skip
    gap, others, target = _shares(reference, sum, target_logit)
    total = others + target
    loss.copy_(torch.where(gap > 0, torch.log1p(others), torch.log(total) - gap))
    if dh is not None and target_rows is not None:
        slope = 1 - (wide(target_logit) / softcap) ** 2 if softcap else 1
        share, miss = (torch.exp(-gap.clamp(min=0)) / total).to(dh), (others / total * slope).to(dh)
        dh.copy_(scale * (dh * share[:, None] - miss[:, None] * target_rows))


def softmax_shares(
    reference: Tensor, sum: Tensor, target_logit: Tensor, scale: float, shares: Tensor, pulls: Tensor, *,
    softcap: float = 0.0,
) -> None:  # fmt: skip
    gap, others, target = _shares(reference, sum, target_logit)
    shares.copy_(scale * torch.exp(-gap.clamp(min=0)) / (others + target))
    pulls.copy_(-sum if not softcap else -sum * (1 - (target_logit / softcap) ** 2))


def _shares(reference: Tensor, sum: Tensor, target_logit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, in float64, how far the target is above the reference, and the terms of the others and of the target.

    Both are relative to the larger of the reference's and the target's exponential.
    """
    gap = wide(target_logit) - wide(reference)
    return gap, wide(sum) * torch.exp(-gap.clamp(min=0)), torch.exp(gap.clamp(max=0))


def softcap(out: Tensor, cap: float) -> None:
    out.div_(cap).tanh_().mul_(cap)


def capped_slopes(x: Tensor, cap: float) -> None:
    x.copy_(1 - (x / cap) ** 2 if cap else torch.ones_like(x))


def _inside(x: Tensor, rows: NDArray[np.intp], columns: Int32) -> tuple[NDArray[np.intp], tuple[Tensor, Tensor]]:
    """Return which of the elements x (n, N) has, and their places in it."""
    (found,) = np.nonzero((columns >= 0) & (columns < x.shape[1]))
    return found, (row_numbers(rows[found], x.device), row_numbers(columns[found], x.device))


def pick(x: Tensor, rows: NDArray[np.intp], columns: Int32, out: Tensor) -> None:
    found, at = _inside(x, rows, columns)
    out[row_numbers(found, out.device)] = x[at].to(out.dtype)


def clear(x: Tensor, rows: NDArray[np.intp], columns: Int32) -> None:
    _, at = _inside(x, rows, columns)
    x[at] = x.new_zeros(())


def largest(x: Tensor, first: int, values: Tensor, columns: Tensor) -> None:
    k = values.shape[1]
    found, at = torch.cat((values, x), 1).topk(k, 1)
    before = columns.gather(1, at.clamp(max=k - 1))
    columns.copy_(torch.where(at < k, before, (at - k + first).to(columns.dtype)))
    values.copy_(found)
