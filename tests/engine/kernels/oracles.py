"""The operations again, in PyTorch and float64: independent of our code, with gradients by autograd.

Each has a magnitude: the same sums over absolute values, which bound how far rounding can carry a
result (see tests/support/check.py). Arrays are float64 and have the names in core/ops.def.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from featherback.engine.backend.protocol import BOTH_WAYS

Array = NDArray[Any]


def autograd(
    forward: Callable[..., Mapping[str, torch.Tensor]], inputs: Mapping[str, Array], cotangents: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the results of `forward`, and the gradients of sum(cotangent * result) with respect to every input."""
    leaves = {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in inputs.items()}
    results = forward(**leaves)
    total = sum((results[name] * torch.tensor(c, dtype=torch.float64)).sum() for name, c in cotangents.items())
    assert isinstance(total, torch.Tensor)
    gradients = torch.autograd.grad(total, list(leaves.values()))
    return (
        {name: result.detach().numpy() for name, result in results.items()},
        {name: gradient.numpy() for name, gradient in zip(leaves, gradients)},
    )


# --- linear with LoRA: out = x W^T + bias + h b -------------------------------------------------------------


def linear(x: Array, w: Array, bias: Array | None = None, h: Array | None = None, b: Array | None = None) -> Array:
    """out (T,N) of x (T,K), w (N,K), bias (N), h (T,r), b (r,N); of absolute values: its magnitude."""
    out = x @ w.T
    if bias is not None:
        out = out + bias
    if h is not None and b is not None:
        out = out + h @ b
    return out


def linear_backward(dy: Array, w: Array, dh: Array | None = None, a: Array | None = None) -> Array:
    """dx (T,K) of dy (T,N), w (N,K), dh (T,r), a (r,K); of absolute values: its magnitude."""
    dx = dy @ w
    return dx if dh is None or a is None else dx + dh @ a


def lora_linear(w: Array, scale: float) -> Callable[..., dict[str, torch.Tensor]]:
    """y = x W^T + bias + scale (x A^T) Bt, as the block uses it."""
    weight = torch.tensor(w, dtype=torch.float64)

    def forward(x: torch.Tensor, bias: torch.Tensor, a: torch.Tensor, bt: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": torch.nn.functional.linear(x, weight, bias) + scale * (x @ a.T) @ bt}

    return forward


# --- RMS norm -----------------------------------------------------------------------------------------------


def rms_norm(weight: Array, eps: float) -> Callable[..., dict[str, torch.Tensor]]:
    """Normalise each group of as many columns as weight has: a row, or its heads."""
    gain = torch.tensor(weight, dtype=torch.float64)

    def forward(x: torch.Tensor) -> dict[str, torch.Tensor]:
        groups = x.reshape(len(x), -1, len(gain))
        return {"out": torch.nn.functional.rms_norm(groups, (len(gain),), gain, eps).reshape(x.shape)}

    return forward


def rms_norm_backward_magnitude(dn: Array, x: Array, weight: Array, eps: float) -> Array:
    groups = x.reshape(len(x), -1, len(weight))
    rstd = 1 / np.sqrt(np.mean(groups**2, axis=2, keepdims=True) + eps)
    g = np.abs(dn.reshape(groups.shape) * weight)
    pull = np.abs(groups) * rstd**2 * np.mean(g * np.abs(groups), axis=2, keepdims=True)
    return np.asarray(rstd * (g + pull)).reshape(x.shape)


# --- RoPE ---------------------------------------------------------------------------------------------------


def angles(positions: Array, head_dim: int, theta: float = 10000.0) -> tuple[Array, Array]:
    """cos, sin (T, d/2) float32 of each position."""
    frequency = theta ** (-np.arange(head_dim // 2) * 2.0 / head_dim)
    angle = positions[:, None] * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rope(cos: Array, sin: Array, head_dim: int, interleaved: bool) -> Callable[..., dict[str, torch.Tensor]]:
    """Rotation as multiplication by e^(i angle), on complex numbers, of as many columns as the tables have."""
    turn = torch.complex(torch.tensor(cos, dtype=torch.float64), torch.tensor(sin, dtype=torch.float64))[:, None]

    def forward(x: torch.Tensor) -> dict[str, torch.Tensor]:
        heads = x.reshape(x.shape[0], -1, head_dim)
        half = cos.shape[1]
        heads, rest = heads[..., : 2 * half], heads[..., 2 * half :]
        u, v = (heads[..., 0::2], heads[..., 1::2]) if interleaved else (heads[..., :half], heads[..., half:])
        z = torch.complex(u, v) * turn
        out = torch.stack([z.real, z.imag], -1).flatten(-2) if interleaved else torch.cat([z.real, z.imag], -1)
        return {"out": torch.cat([out, rest], -1).reshape(x.shape)}

    return forward


# --- gated linear units -------------------------------------------------------------------------------------


def _normal_share(x: torch.Tensor) -> torch.Tensor:
    """Return the normal distribution's share below x, exact to rounding far below 0, where PyTorch's own is 0."""
    return torch.special.erfc(-x / math.sqrt(2)) / 2


ACTIVATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "silu": lambda gate, up: torch.nn.functional.silu(gate) * up,
    "gelu": lambda gate, up: gate * _normal_share(gate) * up,
    "gelu_tanh": lambda gate, up: torch.nn.functional.gelu(gate, approximate="tanh") * up,
    "relu2": lambda gate, up: torch.nn.functional.relu(gate).square() * up,
    "clipped_silu": lambda gate, up: (
        gate.clamp(max=7) * torch.sigmoid(1.702 * gate.clamp(max=7)) * (1 + up.clamp(-7, 7))
    ),
}


def glu(activation: str) -> Callable[..., dict[str, torch.Tensor]]:
    def forward(gate: torch.Tensor, up: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": ACTIVATIONS[activation](gate, up)}

    return forward


def glu_magnitudes(activation: str, da: Array, gate: Array, up: Array) -> dict[str, Array]:
    """Magnitudes of out, dgate, dup. Most are gate * sigmoid(z(gate)); z's rounding reaches the sigmoid."""
    if activation == "relu2":
        relu = np.maximum(gate, 0)
        return {"out": relu**2 * up, "dgate": 2 * relu * da * up, "dup": relu**2 * da}
    if activation == "gelu":
        share = _normal_share(torch.tensor(gate, dtype=torch.float64)).numpy()
        bell = np.exp(-(gate**2) / 2) / np.sqrt(2 * np.pi)
        slope = share + np.abs(gate) * bell
        return {"out": gate * share * up, "dgate": da * up * slope, "dup": gate * share * da}
    if activation == "clipped_silu":
        gate, up = np.clip(gate, -60, 7), 1 + np.abs(np.clip(up, -7, 7))
        sigmoid, steep = 1 / (1 + np.exp(-1.702 * gate)), 1.702 * np.abs(gate)
        value = (1 + steep) * gate * sigmoid
        return {"out": value * up, "dgate": (1 + steep) * da * up * sigmoid * (1 + steep), "dup": value * da}
    if activation == "silu":  # z = gate; further out, 1 - sigmoid is exactly 0 or 1 in float32
        far = np.clip(gate, -17, 17)
        swell, steep, sigmoid = 1.0, np.abs(far), 1 / (1 + np.exp(-np.clip(gate, -500, None)))
    else:
        far = np.clip(gate, -30, 5.5)
        z = 1.5957691 * far * (1 + 0.044715 * far**2)
        swell, steep = 1 + np.abs(z), 1.5957691 * np.abs(far) * (1 + 0.134145 * far**2)
        sigmoid = 1 / (1 + np.exp(-np.clip(z, -500, None)))
    return {
        "out": swell * gate * sigmoid * up,
        "dgate": swell * da * up * sigmoid * (1 + steep),
        "dup": swell * da * gate * sigmoid,
    }


# --- attention ----------------------------------------------------------------------------------------------


def visible(cu_q: Array, cu_k: Array, window: int, prefix: Sequence[int] = ()) -> NDArray[np.bool_]:
    """Return the mask (Tq, Tk): whether a query sees a key. `prefix`: the sequence that each continues, or -1."""
    mask = np.zeros((cu_q[-1], cu_k[-1]), bool)
    for s in range(len(cu_q) - 1):
        queries, keys = cu_q[s + 1] - cu_q[s], cu_k[s + 1] - cu_k[s]
        for i in range(queries):
            position = keys - queries + i  # among the sequence's keys
            first = max(0, position - window + 1) if window > 0 else 0
            last = keys if window == BOTH_WAYS else position + 1
            mask[cu_q[s] + i, cu_k[s] + first : cu_k[s] + last] = True
        if prefix and prefix[s] >= 0:
            mask[cu_q[s] : cu_q[s + 1], cu_k[prefix[s]] : cu_k[prefix[s] + 1]] = True
    return mask


def attention(
    mask: NDArray[np.bool_], heads: int, kv_heads: int, scale: float, softcap: float = 0, sinks: Array | None = None
) -> Callable[..., dict[str, torch.Tensor]]:
    """out (Tq, H*d), lse (H, Tq) and p (H*Tq, Tk), with the whole matrix of scores.

    `sinks` (H,): logits of a further column, whose probability is left out of p.
    """
    hidden = torch.tensor(~mask)
    constant = None if sinks is None else torch.tensor(sinks, dtype=torch.float64)

    def forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = constant
    ) -> dict[str, torch.Tensor]:
        rows, cols = mask.shape
        group = heads // kv_heads
        qh = q.reshape(rows, heads, -1).transpose(0, 1)
        kh = k.reshape(cols, kv_heads, -1).transpose(0, 1).repeat_interleave(group, dim=0)
        vh = v.reshape(cols, kv_heads, -1).transpose(0, 1).repeat_interleave(group, dim=0)
        scores = scale * qh @ kh.transpose(1, 2)
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None, None].expand(-1, rows, 1)], -1)
        p = torch.softmax(scores, -1)[..., :cols]
        out = (p @ vh).transpose(0, 1).reshape(rows, -1)
        return {"out": out, "lse": torch.logsumexp(scores, -1), "p": p.reshape(-1, cols)}

    return forward


def attention_magnitudes(
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    mask: NDArray[np.bool_],
    heads: int,
    kv_heads: int,
    scale: float,
    softcap: float = 0,
    sinks: Array | None = None,
) -> dict[str, Array]:
    """Magnitudes of out, lse, p, dq, dk, dv. A score's rounding changes p by that factor, hence `swell`."""
    cols = mask.shape[1]
    group = heads // kv_heads

    def split(x: Array, count: int) -> Array:  # (heads, rows, d)
        y = x.reshape(len(x), count, -1).transpose(1, 0, 2)
        return np.repeat(y, heads // count, axis=0)

    def join(x: Array) -> Array:
        return np.asarray(x.transpose(1, 0, 2).reshape(x.shape[1], -1))

    qh, kh, vh, gh = split(q, heads), split(k, kv_heads), split(v, kv_heads), split(dout, heads)
    scores = scale * qh @ kh.transpose(0, 2, 1)
    slope: Array | float = 1.0
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
        # The roundings of the slope: of tanh, and of 1 minus its square.
        slope = 1 - (scores / softcap) ** 2 + 0.25
    scores = np.where(mask, scores, -np.inf)
    sink = np.full((heads, 1, 1), -np.inf) if sinks is None else np.asarray(sinks, np.float64)[:, None, None]
    top = np.maximum(scores.max(-1, keepdims=True), sink)
    lse = top + np.log(np.exp(scores - top).sum(-1, keepdims=True) + np.exp(sink - top))
    p = np.exp(scores - lse)
    sizes = np.where(mask, abs(scale) * np.abs(qh) @ np.abs(kh).transpose(0, 2, 1), 0)
    swell = 1 + sizes.max(-1, keepdims=True)
    out = swell * (p @ np.abs(vh))
    delta = (np.abs(gh) * out).sum(-1, keepdims=True)
    ds = abs(scale) * p * slope * (swell * (np.abs(gh) @ np.abs(vh).transpose(0, 2, 1)) + delta)
    dk = (ds.transpose(0, 2, 1) @ np.abs(qh)).reshape(kv_heads, group, cols, -1).sum(1)
    dv = ((p * swell).transpose(0, 2, 1) @ np.abs(gh)).reshape(kv_heads, group, cols, -1).sum(1)
    return {
        "out": join(out),
        "lse": (swell + np.abs(lse))[..., 0],
        "p": (p * swell).reshape(-1, cols),
        "dq": join(ds @ np.abs(kh)),
        "dk": join(dk),
        "dv": join(dv),
    }


# --- the gated delta rule -----------------------------------------------------------------------------------


def delta_rule(cu: Array, k_heads: int, v_heads: int, tiled: bool) -> Callable[..., dict[str, torch.Tensor]]:
    """y (T, Hv*Dv) and after (Hv, Dk*Dv), token by token."""

    def forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor,
        before: torch.Tensor,
    ) -> dict[str, torch.Tensor]:  # fmt: skip
        ratio = v_heads // k_heads
        heads = [h % k_heads if tiled else h // ratio for h in range(v_heads)]
        qh, kh = (x.reshape(len(x), k_heads, -1)[:, heads] for x in (q, k))
        vh = v.reshape(len(v), v_heads, -1)
        state, out = before.reshape(v_heads, kh.shape[2], vh.shape[2]), []
        for s, (first, last) in enumerate(pairwise(cu)):
            if s:
                state = torch.zeros_like(state)
            for t in range(first, last):
                state = decay[t].exp()[:, None, None] * state
                d = beta[t][:, None] * (vh[t] - torch.einsum("hij,hi->hj", state, kh[t]))
                state = state + torch.einsum("hi,hj->hij", kh[t], d)
                out.append(torch.einsum("hij,hi->hj", state, qh[t]).reshape(-1))
        return {"y": torch.stack(out), "after": state.reshape(v_heads, -1)}

    return forward


# --- cross-entropy with the head ----------------------------------------------------------------------------


def cross_entropy(targets: Array, softcap: float = 0) -> Callable[..., dict[str, torch.Tensor]]:
    """loss (n) of logits (n, V)."""
    labels = torch.tensor(targets, dtype=torch.int64)

    def forward(logits: torch.Tensor) -> dict[str, torch.Tensor]:
        if softcap:
            logits = torch.tanh(logits / softcap) * softcap
        return {"loss": torch.nn.functional.cross_entropy(logits, labels, reduction="none")}

    return forward
