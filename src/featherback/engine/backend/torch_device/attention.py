"""Attention and its gradient, a sequence and some heads at a time. In bf16 on a GPU: FlashAttention if possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from featherback.engine import kernels
from featherback.engine.backend.protocol import BOTH_WAYS
from featherback.engine.backend.torch_device.arrays import put, uploaded
from featherback.engine.formats.types import TensorType

Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class Shape:
    """What the scores depend on besides q and k."""

    heads: int
    kv_heads: int
    cu_q: Int32
    cu_k: Int32
    scale: float
    window: int
    softcap: float
    most: int  # scores that may exist at a time
    prefix: Int32 | None = None
    sinks: Tensor | None = None

    @property
    def is_causal(self) -> bool:
        """Whether queries see no later keys."""
        return self.window != BOTH_WAYS

    @property
    def right(self) -> int:
        """The later keys that a query sees, as PyTorch counts them: none, or -1 for all."""
        return 0 if self.is_causal else -1


class Part(NamedTuple):
    """Some queries `rows` of a sequence, and the `keys` up to the last of them, for some heads and their key heads."""

    rows: slice
    keys: slice
    shared: slice | None  # the keys of the sequence's prefix
    heads: slice
    kv_heads: slice

    def of_keys(self, x: Tensor) -> Tensor:
        """Return the keys' rows of x (T, kv_heads, d), as float32 (key heads, keys, d)."""
        own = x[self.keys, self.kv_heads]
        both = own if self.shared is None else torch.cat((x[self.shared, self.kv_heads], own))
        return both.float().transpose(0, 1)

    def add_to_keys(self, out: Tensor, values: Tensor) -> None:
        """out (T, kv_heads, d) += values (key heads, keys, d) at the keys' rows."""
        by_row = values.transpose(0, 1)
        before = 0 if self.shared is None else self.shared.stop - self.shared.start
        out[self.keys, self.kv_heads] += by_row[before:]
        if self.shared is not None:
            out[self.shared, self.kv_heads] += by_row[:before]


def attention(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, heads: int, kv_heads: int, cu_q: Int32,
    cu_k: Int32, *, scale: float, window: int, softcap: float, p: Tensor | None = None, prefix: Int32 | None = None,
    sinks: Tensor | None = None, most: int,
) -> None:  # fmt: skip
    shape = Shape(heads, kv_heads, cu_q, cu_k, scale, window, softcap, most, prefix, sinks)
    if _is_flash(out, p, shape):
        _flash(q, k, v, out, lse, shape)
        return
    q, k, v = (_by_head(x, n) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    for part in _parts(shape):
        scores = _capped(_scores(q, k, part, shape), softcap)
        total = torch.logsumexp(scores, -1)
        if sinks is not None:
            total = torch.logaddexp(total, sinks.reshape(kv_heads, -1, 1)[part.kv_heads])
        weights = torch.exp(scores - total[..., None])  # (key heads, heads per key head, n, m)
        value = weights.flatten(1, 2) @ part.of_keys(v)
        by_head = value.view(-1, weights.shape[2], value.shape[-1])
        _by_head(out, heads)[part.rows, part.heads] = by_head.transpose(0, 1).to(out.dtype)
        if lse is not None:
            lse[part.heads, part.rows] = total.flatten(0, 1)
        if p is not None:
            assert part.shared is None
            p.view(heads, -1, p.shape[1])[part.heads, part.rows, part.keys] = weights.flatten(0, 1).to(p.dtype)


def attention_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, delta: Tensor, dq: Tensor, dk: Tensor,
    dv: Tensor, heads: int, kv_heads: int, cu_q: Int32, cu_k: Int32, *, scale: float, window: int, softcap: float,
    p: Tensor | None = None, accumulate: bool = False, prefix: Int32 | None = None, most: int,
) -> None:  # fmt: skip
    shape = Shape(heads, kv_heads, cu_q, cu_k, scale, window, softcap, most, prefix)
    if _is_flash(out, p, shape):
        _flash_backward(dout, q, k, v, out, lse, delta, dq, dk, dv, shape, accumulate)
        return
    if not accumulate:
        dk.zero_()
        dv.zero_()
    dout, q, dq = (_by_head(x, heads) for x in (dout, q, dq))
    k, v, dk, dv = (_by_head(x, kv_heads) for x in (k, v, dk, dv))
    for part in _parts(shape):
        groups = part.kv_heads.stop - part.kv_heads.start
        scores = _capped(_scores(q, k, part, shape), softcap)
        weights = torch.exp(scores - lse[part.heads, part.rows].view(*scores.shape[:3])[..., None]).flatten(1, 2)
        d_out = dout[part.rows, part.heads].float().transpose(0, 1).reshape(groups, -1, dout.shape[-1])
        d_weights = d_out @ part.of_keys(v).transpose(1, 2)  # (key heads, heads per key head * n, m)
        mean = (weights * d_weights).sum(-1, keepdim=True)
        delta[part.heads, part.rows] = mean.view(-1, scores.shape[2])
        d_scores = scale * weights * (d_weights - mean)
        if softcap:
            d_scores = torch.where(weights > 0, d_scores * (1 - (scores.flatten(1, 2) / softcap) ** 2), 0)
        found = (d_scores @ part.of_keys(k)).view(-1, scores.shape[2], q.shape[-1])
        dq[part.rows, part.heads] = found.transpose(0, 1)
        queries = q[part.rows, part.heads].float().transpose(0, 1).reshape(groups, -1, q.shape[-1])
        part.add_to_keys(dk, d_scores.transpose(1, 2) @ queries)
        part.add_to_keys(dv, weights.transpose(1, 2) @ d_out)


def _by_head(x: Tensor, heads: int) -> Tensor:
    """Return x (T, heads d) as (T, heads, d)."""
    return x.unflatten(1, (heads, -1))


def _parts(shape: Shape) -> Iterator[Part]:
    """Yield each sequence with as many heads, or else rows, at a time as `most` scores allow."""
    shared_by = shape.heads // shape.kv_heads
    for i in range(len(shape.cu_q) - 1):
        rows, keys = (range(int(cu[i]), int(cu[i + 1])) for cu in (shape.cu_q, shape.cu_k))
        before, behind = None, 0
        if shape.prefix is not None and (other := int(shape.prefix[i])) >= 0:
            before = slice(int(shape.cu_k[other]), int(shape.cu_k[other + 1]))
            behind = before.stop - before.start
        of_row = shared_by * max(1, len(keys) + behind)
        count = min(len(rows), max(1, shape.most // of_row)) or 1
        step = min(shape.kv_heads, max(1, shape.most // (of_row * count)))
        for first in range(rows.start, rows.stop, count):
            last = min(rows.stop, first + count)
            seen = slice(keys.start, keys.stop - (rows.stop - last))
            for head in range(0, shape.kv_heads, step):
                end = min(shape.kv_heads, head + step)
                heads = slice(head * shared_by, end * shared_by)
                yield Part(slice(first, last), seen, before, heads, slice(head, end))


def _scores(q: Tensor, k: Tensor, part: Part, shape: Shape) -> Tensor:
    """Return scale q k^T (key heads, heads per key head, n, m) before the cap; -inf marks keys that are not seen."""
    groups = part.kv_heads.stop - part.kv_heads.start
    queries = q[part.rows, part.heads].float().transpose(0, 1).reshape(groups, -1, q.shape[-1])
    keys = part.of_keys(k)
    scores = (shape.scale * (queries @ keys.transpose(1, 2))).view(groups, -1, len(q[part.rows]), keys.shape[1])
    own = part.keys.stop - part.keys.start
    n, before = scores.shape[2], scores.shape[3] - own
    i = torch.arange(own - n, own, device=q.device)[:, None]
    j = torch.arange(-before, own, device=q.device)[None]
    hidden = (j > i) & shape.is_causal
    if shape.window > 0:
        hidden = hidden | ((j <= i - shape.window) & (j >= 0))
    return scores.masked_fill_(hidden, -torch.inf)


def _capped(scores: Tensor, softcap: float) -> Tensor:
    if not softcap:
        return scores
    return torch.where(scores.isneginf(), scores, softcap * torch.tanh(scores / softcap))


def _is_flash(out: Tensor, p: Tensor | None, shape: Shape) -> bool:
    """Return whether the GPU's fused kernels can compute this: bf16, and nothing unusual about the scores."""
    usual = p is None and shape.prefix is None and shape.sinks is None and not shape.softcap
    return usual and out.is_cuda and out.dtype == torch.bfloat16 and out.shape[1] // shape.heads % 8 == 0


def _flash_arguments(q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> tuple[list[Tensor], list[Tensor | int], int]:
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    arrays = [_by_head(x, n).to(torch.bfloat16).contiguous() for x, n in zip((q, k, v), heads, strict=True)]
    bounds = [uploaded(cu.astype(np.int32), q.device) for cu in (shape.cu_q, shape.cu_k)]
    longest = [int(np.diff(cu).max()) for cu in (shape.cu_q, shape.cu_k)]
    return arrays, [*bounds, *longest], shape.window - 1 if shape.window > 0 else -1


def _flash(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, shape: Shape) -> None:
    arrays, bounds, left = _flash_arguments(q, k, v, shape)
    found = torch.ops.aten._flash_attention_forward(
        *arrays,
        *bounds,
        0.0,
        shape.is_causal,
        False,
        scale=shape.scale,
        window_size_left=left,
        window_size_right=shape.right,
    )
    out.copy_(found[0].flatten(1))
    if lse is not None:
        lse.copy_(found[1].view(shape.heads, -1))


def _flash_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, delta: Tensor, dq: Tensor, dk: Tensor,
    dv: Tensor, shape: Shape, accumulate: bool,
) -> None:  # fmt: skip
    arrays, bounds, left = _flash_arguments(q, k, v, shape)
    values, state = _by_head(out, shape.heads), torch.zeros(2, dtype=torch.uint64, device=q.device)
    gradient = _by_head(dout, shape.heads).to(torch.bfloat16)
    delta.copy_((gradient.float() * values.float()).sum(-1).T)
    found = torch.ops.aten._flash_attention_backward(
        gradient.contiguous(), *arrays, values.contiguous(), lse.contiguous(), *bounds, 0.0, shape.is_causal, state,
        state[:0], scale=shape.scale, window_size_left=left, window_size_right=shape.right,
    )  # fmt: skip
    put(dq, found[0].flatten(1))
    put(dk, found[1].flatten(1), accumulate)
    put(dv, found[2].flatten(1), accumulate)


def _segments(cache: Tensor, kind: int, kv_heads: int, size: int) -> Tensor:
    """Return a piece of a cache as (segments, heads, key or value, tokens, d), float32."""
    assert kind == TensorType.F32
    return cache.view(torch.float32).view(-1, kv_heads, 2, kernels.SEGMENT, size)


def cache_rows(k: Tensor, v: Tensor, start: int, cache: Tensor, kind: int, kv_heads: int, first: int = 0) -> None:
    segments = _segments(cache, kind, kv_heads, k.shape[1] // kv_heads)
    for t in range(len(k)):
        segment, row = divmod(start + t - first, kernels.SEGMENT)
        segments[segment, :, 0, row] = k[t].view(kv_heads, -1)
        segments[segment, :, 1, row] = v[t].view(kv_heads, -1)


def cached_attention(
    q: Tensor, cache: Tensor, kind: int, out: Tensor, heads: int, kv_heads: int, keys: int, *, scale: float,
    window: int = 0, softcap: float = 0.0, sinks: Tensor | None = None, first: int = 0, last: int | None = None,
    state: Tensor | None = None, begins: bool = True, ends: bool = True, most: int,
) -> None:  # fmt: skip
    assert (begins, ends, first) == (True, True, 0), "in one piece"
    segments = _segments(cache, kind, kv_heads, q.shape[1] // heads)
    k, v = (segments[:, :, i].transpose(1, 2).reshape(-1, kv_heads * segments.shape[-1])[:keys] for i in (0, 1))
    bounds = np.array([0, len(q)], np.int32), np.array([0, keys], np.int32)
    attention(
        q,
        k,
        v,
        out,
        None,
        heads,
        kv_heads,
        *bounds,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        most=most,
    )


def sinks_gradient(sinks: Tensor, lse: Tensor, delta: Tensor, out: Tensor) -> None:
    out.copy_(-(torch.exp(sinks.reshape(-1, 1) - lse) * delta).sum(1))
