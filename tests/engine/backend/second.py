"""A second device: plain NumPy in float32, with its own arrays, with which no other code can compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from featherback.core.noise import add_normal
from featherback.engine.backend import levels
from featherback.engine.formats.types import TensorType
from featherback.infer.key_cache import SEGMENT

F32 = np.dtype(np.float32)


class Array:
    """What the protocol asks of an array, and nothing else: NumPy and the native kernels cannot read it."""

    __array_ufunc__ = None

    def __init__(self, data: np.ndarray) -> None:
        self._data = data
        self.shape, self.dtype = data.shape, data.dtype

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, key: Any) -> Array:
        keys = key if isinstance(key, tuple) else (key,)
        assert all(isinstance(each, slice) for each in keys), "slices alone"
        return Array(self._data[key])

    def reshape(self, *shape: int) -> Array:
        assert self._data.flags.c_contiguous
        return Array(self._data.reshape(*shape))


class Matrix:
    """A stored weight in float32, or a rectangle of one."""

    def __init__(self, data: np.ndarray) -> None:
        self.data, self.shape = data, data.shape

    def slice(self, rows: tuple[int, int] | None = None, cols: tuple[int, int] | None = None) -> Matrix:
        return Matrix(self.data[slice(*(rows or (None,))), slice(*(cols or (None,)))])


class Scratch:
    def take(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        return Array(np.full(shape, np.nan, dtype))

    @contextmanager
    def frame(self) -> Iterator[None]:
        yield


def _on_arrays(operation: Callable[..., Any]) -> Any:
    """Turn an operation on NumPy arrays into one of this device."""

    def run(_: Any, *arguments: Any, **options: Any) -> Any:
        def inside(value: Any) -> Any:
            if isinstance(value, list):
                return [tuple(map(inside, each)) if isinstance(each, tuple) else each for each in value]
            return value._data if isinstance(value, Array) else value

        return operation(*map(inside, arguments), **{name: inside(value) for name, value in options.items()})

    return run


def _put(out: np.ndarray, values: np.ndarray, accumulate: bool) -> None:
    out[...] = out + values if accumulate else values


def _linear(x: Any, w: Any, out: Any, *, bias: Any = None, h: Any = None, b: Any = None, accumulate: Any = False):  # type: ignore[no-untyped-def]
    y = x @ w.data.T
    if bias is not None:
        y += bias.reshape(-1)
    if h is not None:
        y += h @ b
    _put(out, y, accumulate)


def _linear_backward(dy: Any, w: Any, dx: Any, *, dh: Any = None, a: Any = None, accumulate: Any = False) -> None:
    found = dy @ w.data
    if dh is not None:
        found += dh @ a
    _put(dx, found, accumulate)


def _rms(x: Any, weight: Any, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normalise groups of as many columns as there are weights."""
    groups = x.reshape(len(x), -1, weight.size).astype(np.float64)
    r = 1 / np.sqrt(np.square(groups).mean(axis=-1, keepdims=True) + eps)
    return groups, r, weight.reshape(-1).astype(np.float64)


def _rms_norm(x: Any, weight: Any, eps: float, out: Any, *, accumulate: bool = False) -> None:
    groups, r, g = _rms(x, weight, eps)
    _put(out, (groups * r * g).reshape(x.shape), accumulate)


def _rms_norm_backward(dn: Any, x: Any, weight: Any, eps: float, dx: Any, *, accumulate: bool = True) -> None:
    groups, r, g = _rms(x, weight, eps)
    d = dn.reshape(groups.shape) * g
    _put(dx, (r * (d - groups * r**2 * (d * groups).mean(axis=-1, keepdims=True))).reshape(x.shape), accumulate)


def _rope(x: Any, cos: Any, sin: Any, out: Any, head_dim: int, interleaved: bool, *, inverse: bool = False) -> None:
    heads, half = x.reshape(len(x), -1, head_dim).copy(), cos.shape[1]
    pair = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    a, b = heads[..., pair[0]].copy(), heads[..., pair[1]].copy()
    c, s = cos[:, None], sin[:, None] * (-1 if inverse else 1)
    heads[..., pair[0]], heads[..., pair[1]] = a * c - b * s, b * c + a * s
    out[...] = heads.reshape(x.shape)


def _scores(q: Any, k: Any, cu_q: Any, cu_k: Any, scale: float) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Yield the scores of each sequence's queries (n, d) with its keys. A query sees the keys up to its own place."""
    for i in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        s = scale * q[rows].astype(np.float64) @ k[keys].T
        n, m = s.shape
        s[np.arange(m)[None] > np.arange(m - n, m)[:, None]] = -np.inf
        yield rows, keys, s


def _attention(
    q: Any, k: Any, v: Any, out: Any, lse: Any, heads: int, kv_heads: int, cu_q: Any, cu_k: Any, *,
    scale: float, window: int, softcap: float, p: Any = None, prefix: Any = None, sinks: Any = None,
) -> None:  # fmt: skip
    assert window == softcap == 0
    assert p is prefix is sinks is None
    size = q.shape[1] // heads
    for head in range(heads):
        at = slice(head * size, head * size + size)
        shared = slice(head * kv_heads // heads * size, head * kv_heads // heads * size + size)
        for rows, keys, s in _scores(q[:, at], k[:, shared], cu_q, cu_k, scale):
            total = np.log(np.exp(s - s.max(1, keepdims=True)).sum(1)) + s.max(1)
            out[rows, at] = np.exp(s - total[:, None]) @ v[keys, shared]
            if lse is not None:
                lse[head, rows] = total


def _cache_rows(k: Any, v: Any, start: int, cache: Any, type: int, kv_heads: int, first: int = 0) -> None:
    segments = _segments(cache, type, kv_heads, k.shape[1] // kv_heads)
    for t in range(len(k)):
        segment, row = divmod(start + t - first, SEGMENT)
        segments[segment, :, 0, row] = k[t].reshape(kv_heads, -1)
        segments[segment, :, 1, row] = v[t].reshape(kv_heads, -1)


def _segments(cache: Any, type: int, kv_heads: int, size: int) -> np.ndarray:
    """Return a piece of a cache as (segments, heads, key or value, SEGMENT, d), float32."""
    assert type == TensorType.F32
    return cache.view(np.float32).reshape(-1, kv_heads, 2, SEGMENT, size)


def _cached_attention(
    q: Any, cache: Any, type: int, out: Any, heads: int, kv_heads: int, keys: int, *, scale: float, window: int = 0,
    softcap: float = 0.0, sinks: Any = None, first: int = 0, last: Any = None, state: Any = None,
    begins: bool = True, ends: bool = True,
) -> None:  # fmt: skip
    assert (begins, ends, first) == (True, True, 0), "in one piece"
    segments = _segments(cache, type, kv_heads, q.shape[1] // heads)
    k, v = (np.moveaxis(segments[:, :, i], 2, 1).reshape(-1, kv_heads * segments.shape[-1])[:keys] for i in (0, 1))
    cu_q, cu_k = np.array([0, len(q)]), np.array([0, keys])
    _attention(
        q, k, v, out, None, heads, kv_heads, cu_q, cu_k, scale=scale, window=window, softcap=softcap, sinks=sinks
    )


def _attention_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, delta: Any, dq: Any, dk: Any, dv: Any, heads: int,
    kv_heads: int, cu_q: Any, cu_k: Any, *, scale: float, window: int, softcap: float, p: Any = None,
    accumulate: bool = False, prefix: Any = None,
) -> None:  # fmt: skip
    assert window == softcap == 0
    assert p is prefix is None
    size = q.shape[1] // heads
    found = [np.zeros(each.shape) for each in (q, k, v)]
    for head in range(heads):
        at = slice(head * size, head * size + size)
        shared = slice(head * kv_heads // heads * size, head * kv_heads // heads * size + size)
        for rows, keys, s in _scores(q[:, at], k[:, shared], cu_q, cu_k, scale):
            share = np.exp(s - np.log(np.exp(s - s.max(1, keepdims=True)).sum(1, keepdims=True)) - s.max(1)[:, None])
            do = dout[rows, at].astype(np.float64)
            dp = do @ v[keys, shared].T
            ds = share * (dp - (share * dp).sum(1, keepdims=True))
            found[0][rows, at] += scale * ds @ k[keys, shared]
            found[1][keys, shared] += scale * ds.T @ q[rows, at]
            found[2][keys, shared] += share.T @ do
    dq[...] = found[0]
    _put(dk, found[1], accumulate)
    _put(dv, found[2], accumulate)


def _silu(gate: Any) -> tuple[np.ndarray, np.ndarray]:
    s = 1 / (1 + np.exp(-gate.astype(np.float64)))
    return gate * s, s * (1 + gate * (1 - s))


def _glu(gate: Any, up: Any, out: Any, activation: str) -> None:
    assert activation == "silu"
    out[...] = _silu(gate)[0] * up


def _glu_backward(da: Any, gate: Any, up: Any, dgate: Any, dup: Any, activation: str, a: Any = None) -> None:
    value, slope = _silu(gate)
    if a is not None:
        a[...] = value * up
    dgate[...], dup[...] = da * up * slope, da * value


def _cross_entropy_tile(
    logits: Any, first: int, targets: Any, reference: Any, sum: Any, target_logit: Any, p: Any = None, dh: Any = None,
    *, softcap: float = 0.0,
) -> None:  # fmt: skip
    """`sum` does not include the target's own term."""
    assert not softcap
    here = (targets >= first) & (targets < first + logits.shape[1])
    rows, cols = np.flatnonzero(here), targets[here] - first
    target_logit[rows] = logits[rows, cols]
    others = logits.astype(np.float64)
    others[rows, cols] = -np.inf
    top = np.maximum(reference, others.max(1)).astype(np.float32)
    shrunk = np.where(np.isneginf(reference), 0, np.exp(np.where(np.isneginf(reference), 0, reference) - top))
    terms = np.exp(others - top[:, None])
    sum[...] = sum * shrunk + terms.sum(1)
    if p is not None:
        p[...] = terms
        dh *= shrunk[:, None]
    reference[...] = top


def _cross_entropy_finish(
    reference: Any, sum: Any, target_logit: Any, loss: Any, target_rows: Any = None, dh: Any = None,
    scale: float = 1.0, *, softcap: float = 0.0,
) -> None:  # fmt: skip
    gap = target_logit.astype(np.float64) - reference
    total = sum + np.exp(gap)
    loss[...] = np.log(total) - gap
    if dh is not None:
        dh[...] = scale / total[:, None] * (dh - sum[:, None] * target_rows)


def _add_rows(values: Any, rows: Any, out: Any, *, factors: Any = None) -> None:
    for t in np.flatnonzero((rows >= 0) & (rows < len(out))):
        out[rows[t]] += values[t] if factors is None else factors[t] * values[t]


def _take(x: Any, rows: Any, out: Any) -> None:
    out[...] = x[rows]


def _set(x: Any, rows: Any, value: Any) -> None:
    x[rows] = value


def _adamw(p, g, m, v, lr, beta1, beta2, eps, decay, step, scale) -> None:  # type: ignore[no-untyped-def]
    g = g.astype(np.float64) * scale
    m[...] = beta1 * m + (1 - beta1) * g
    v[...] = beta2 * v + (1 - beta2) * g * g
    p[...] = p - lr * (m / (1 - beta1**step) / (np.sqrt(v / (1 - beta2**step)) + eps) + decay * p)


def _table(frequencies: Any, positions: Any, cos: Any, sin: Any) -> None:
    angles = positions.astype(np.float32)[:, None] * frequencies
    cos[...], sin[...] = np.cos(angles), np.sin(angles)


def _lora_in_parts(x: Any, parts: Any, h: Any, *, accumulate: bool = False) -> None:
    for first, last, a, scale in parts:
        _put(h[first:last, : len(a)], scale * x[first:last] @ a.T, accumulate)


def _lora_out_parts(h: Any, parts: Any, out: Any) -> None:
    for first, last, b in parts:
        out[first:last] += h[first:last, : len(b)] @ b


class Operations:
    linear, linear_backward = _on_arrays(_linear), _on_arrays(_linear_backward)
    lora_in = _on_arrays(lambda x, a, h, scale, *, accumulate=False: _put(h, scale * x @ a.T, accumulate))
    lora_gradient = _on_arrays(lambda dh, x, da, scale=1.0, *, accumulate=False: _put(da, scale * dh.T @ x, accumulate))
    lora_in_parts, lora_out_parts = _on_arrays(_lora_in_parts), _on_arrays(_lora_out_parts)
    rms_norm, rms_norm_backward, rope = _on_arrays(_rms_norm), _on_arrays(_rms_norm_backward), _on_arrays(_rope)
    attention, attention_backward = _on_arrays(_attention), _on_arrays(_attention_backward)
    cache_rows, cached_attention = _on_arrays(_cache_rows), _on_arrays(_cached_attention)
    glu, glu_backward = _on_arrays(_glu), _on_arrays(_glu_backward)
    cross_entropy_tile, cross_entropy_finish = _on_arrays(_cross_entropy_tile), _on_arrays(_cross_entropy_finish)
    cast = _on_arrays(lambda x, out: np.copyto(out, x))
    fill = _on_arrays(lambda out, value: out.fill(value))
    scale = _on_arrays(lambda out, factor: np.multiply(out, factor, out))
    take_rows, put_rows = _on_arrays(_take), _on_arrays(lambda values, rows, x: _set(x, rows, values))
    zero_rows, add_rows = _on_arrays(lambda x, rows: _set(x, rows, 0)), _on_arrays(_add_rows)
    total = _on_arrays(lambda x: float(x.sum(dtype=np.float64)))
    sum_squares = _on_arrays(lambda x: float(np.square(x, dtype=np.float64).sum()))
    add_normal, rotary_table, adamw = _on_arrays(add_normal), _on_arrays(_table), _on_arrays(_adamw)
    add, subtract, multiply, divide = map(_on_arrays, (np.add, np.subtract, np.multiply, np.divide))
    sqrt, sign, clip, matmul = map(_on_arrays, (np.sqrt, np.sign, np.clip, np.matmul))
    pack, unpack = _on_arrays(levels.pack), _on_arrays(levels.unpack)
    dense = _on_arrays(Matrix)


class Second:
    """`featherback.engine.backend.protocol.Backend`, with memory of its own."""

    operand = dense_type = F32

    def __init__(self, compute: str, rounded: bool = False, decoding: bool = False) -> None:
        self.ops = Operations()

    def weights(self, *_: Any) -> None:
        """The host reads them."""

    def arena(self, nbytes: int) -> Scratch:
        return Scratch()

    def matrix(self, stored: Any) -> Matrix:
        assert stored.type == TensorType.F32
        return Matrix(stored.data.view(np.float32).reshape(stored.shape).copy())

    def gather_rows(self, stored: Any, ids: Any, out: Array) -> None:
        out._data[...] = self.matrix(stored).data[ids]

    def release(self, matrix: Matrix, around: int) -> None:
        """Do nothing: nothing is mapped."""

    def vector(self, values: np.ndarray) -> Array:
        return Array(values.copy())

    @contextmanager
    def host(self, x: Array, *, write: bool = False) -> Iterator[np.ndarray]:
        values = np.full(x.shape, np.nan, x.dtype) if write else x._data.copy()
        yield values
        if write:
            x._data[...] = values

    @contextmanager
    def held(self, values: np.ndarray, *, changing: bool = False) -> Iterator[Array]:
        x = Array(values.copy())
        yield x
        if changing:
            values[...] = x._data

    def each(self, tiles: Any) -> Any:
        return tiles
