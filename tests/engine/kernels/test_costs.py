"""The declared costs of operations are true: scratch by a high-water mark, arithmetic by counting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.kernels import oracles
from tests.engine.kernels.native import TYPES, VECTOR_SETS, stored, using
from tests.support.bf16 import narrow
from tests.support.sweep import sweep

from featherback.engine import kernels

Array = NDArray[Any]
isas = pytest.mark.parametrize("isa", VECTOR_SETS)
dtypes = pytest.mark.parametrize("dtype", ["f32", "bf16"])
threads = pytest.mark.parametrize("threads", [1, 3])


@pytest.fixture(autouse=True)
def threads_restored() -> Iterator[None]:
    before = kernels.threads()
    yield
    kernels.set_threads(before)


def peak(isa: str, threads: int, call: Callable[[], None]) -> int:
    """Return the most bytes of scratch that a thread requests in a call."""
    kernels.set_threads(threads)
    kernels.scratch_peak()
    with using(isa):
        call()
    return kernels.scratch_peak()


def cost(isa: str, operation: str, *arguments: Any, **named: Any) -> tuple[float, int]:
    with using(isa):
        flops, scratch = getattr(kernels, f"{operation}_cost")(*arguments, **named)
        return flops, scratch


@isas
@dtypes
@threads
@pytest.mark.parametrize(
    ("T", "K", "N", "r", "type"),
    [
        (1, 64, 37, 8, "Q4_0"),
        (2, 512, 70, 3, "Q6_K"),
        (4, 101, 33, 0, "F32"),
        (5, 256, 17, 8, "Q4_K"),
        (33, 352, 131, 300, "Q8_0"),
        (257, 96, 700, 8, "BF16"),
        (0, 32, 9, 4, "F16"),
    ],
)
def test_linear(
    rng: np.random.Generator, isa: str, dtype: str, threads: int, T: int, K: int, N: int, r: int, type: str
) -> None:
    w = stored(rng, type, N, K).matrix
    x, dy, h = (narrow(rng.standard_normal((T, width)), dtype) for width in (K, N, r))
    a, b = np.zeros((r, K), np.float32), np.zeros((r, N), np.float32)
    out, dx = np.zeros((T, N), np.float32), np.zeros((T, K), np.float32)
    shape: dict[str, Any] = {"tokens": T, "inputs": K, "outputs": N, "rank": r, "bf16": dtype == "bf16"}

    flops, scratch = cost(isa, "linear", **shape, type=TYPES[type])
    assert flops == 2 * T * (K + r) * N
    assert scratch == peak(isa, threads, lambda: kernels.linear(x, w, out, h=h, b=b))

    flops, scratch = cost(isa, "linear_backward", **shape)
    assert flops == 2 * T * (N + r) * K
    assert scratch == peak(isa, threads, lambda: kernels.linear_backward(dy, w, dx, dh=h, a=a))

    if dtype == "f32":
        flops, scratch = cost(isa, "linear", **shape, type=TYPES[type], fixed=True)
        assert flops == 2 * T * (K + r) * N
        assert scratch == peak(isa, threads, lambda: kernels.linear(x, w, out, h=h, b=b, fixed=True))
        flops, scratch = cost(isa, "linear_backward", **shape, fixed=True)
        assert flops == 2 * T * (N + r) * K
        assert scratch == peak(isa, threads, lambda: kernels.linear_backward(dy, w, dx, dh=h, a=a, fixed=True))


@isas
@sweep(
    dtypes,
    threads,
    pytest.mark.parametrize(("T", "K", "r"), [(1, 5, 3), (7, 33, 8), (24, 130, 1), (133, 70, 16), (3, 8, 0)]),
)
def test_lora(rng: np.random.Generator, isa: str, dtype: str, threads: int, T: int, K: int, r: int) -> None:
    x, dh = (narrow(rng.standard_normal((T, width)), dtype) for width in (K, r))
    a, h = np.zeros((r, K), np.float32), np.zeros((T, r), np.float32)
    flops, scratch = cost(isa, "lora_in", T, K, r)
    assert flops == 2 * T * K * r
    assert scratch == peak(isa, threads, lambda: kernels.lora_in(x, a, h))
    flops, scratch = cost(isa, "lora_gradient", T, K, r)
    assert flops == 2 * T * K * r
    assert scratch == peak(isa, threads, lambda: kernels.lora_gradient(dh, x, a))


@isas
@dtypes
@threads
@pytest.mark.parametrize("window", [0, 20, 1000])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "kv_heads", "d"),
    [
        ((1,), (1,), 2, 1, 24),
        ((1, 3), (130, 70), 4, 2, 64),
        ((4, 0), (4, 9), 2, 2, 128),
        ((133, 1, 40), (133, 60, 90), 6, 2, 20),
        ((0,), (0,), 2, 1, 8),
    ],
)
def test_attention(
    rng: np.random.Generator,
    isa: str,
    dtype: str,
    threads: int,
    window: int,
    softcap: float,
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    heads: int,
    kv_heads: int,
    d: int,
) -> None:
    cu_q, cu_k = (np.cumsum([0, *lengths], dtype=np.int32) for lengths in (queries, keys))
    rows, cols = int(cu_q[-1]), int(cu_k[-1])
    q, out = (narrow(rng.standard_normal((rows, heads * d)), dtype) for _ in range(2))
    k, v = (narrow(rng.standard_normal((cols, kv_heads * d)), dtype) for _ in range(2))
    lse, delta = np.zeros((2, heads, rows), np.float32)
    dout, dq = np.zeros((2, rows, heads * d), np.float32)
    dk, dv = np.zeros((2, cols, kv_heads * d), np.float32)
    shape: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "cu_q": cu_q, "cu_k": cu_k}
    named: dict[str, Any] = {"window": window, "softcap": softcap}
    pairs = int(oracles.visible(cu_q, cu_k, window).sum())

    for backward_follows in (False, True):
        flops, scratch = cost(isa, "attention", **shape, head_dim=d, **named, backward_follows=backward_follows)
        assert flops == 2 * 2 * pairs * heads * d
        wanted = lse if backward_follows else None
        assert scratch == peak(
            isa, threads, lambda wanted=wanted: kernels.attention(q, k, v, out, wanted, **shape, **named)
        )
    flops, scratch = cost(isa, "attention_backward", **shape, head_dim=d, **named)
    assert flops == 5 * 2 * pairs * heads * d
    assert scratch == peak(
        isa, threads, lambda: kernels.attention_backward(dout, q, k, v, out, lse, delta, dq, dk, dv, **shape, **named)
    )


@isas
def test_a_prefix_is_counted_for_each_that_continues_it(isa: str) -> None:
    cu, prefix = np.array([0, 40, 47, 80, 90], np.int32), np.array([-1, 0, 0, -1], np.int32)
    pairs = int(oracles.visible(cu, cu, 0, prefix.tolist()).sum())
    assert cost(isa, "attention", cu, cu, 4, 2, 24, prefix=prefix)[0] == 2 * 2 * pairs * 4 * 24
    assert cost(isa, "attention_backward", cu, cu, 4, 2, 24, prefix=prefix)[0] == 5 * 2 * pairs * 4 * 24


@pytest.mark.parametrize(
    ("prefix", "window", "reason"),
    [
        ([-1, 0], 0, "a number for each sequence"),
        ([0, -1, -1], 0, "all between the two continue"),
        ([-1, 2, -1], 0, "all between the two continue"),
        ([-1, -2, -1], 0, "all between the two continue"),
        ([-1, -1, 0], 0, "all between the two continue"),
        ([-1, 0, 1], 0, "all between the two continue"),
        ([-1, 0, 0], 8, "longer than the window"),
    ],
)
def test_impossible_prefixes_are_refused(prefix: list[int], window: int, reason: str) -> None:
    cu = np.array([0, 5, 7, 11], np.int32)
    with pytest.raises(ValueError, match=reason):
        kernels.attention_cost(cu, cu, 2, 1, 8, window=window, prefix=np.array(prefix, np.int32))


def test_costs_of_impossible_shapes_are_refused() -> None:
    cu = np.array([0, 5], np.int32)
    with pytest.raises(ValueError, match="more queries than keys"):
        kernels.attention_cost(cu, np.array([0, 4], np.int32), 2, 1, 8)
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        kernels.attention_backward_cost(cu, cu, 3, 2, 8)
    with pytest.raises(ValueError, match="unknown"):
        kernels.linear_cost(5, 8, 8, 2, False, type=99)
