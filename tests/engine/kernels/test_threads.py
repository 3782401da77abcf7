"""Results are bit-identical for any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.kernels.native import VECTOR_SETS, kernel, stored
from tests.support.bf16 import narrow
from tests.support.sweep import sweep

from featherback.engine import kernels

Array = NDArray[Any]
T, K, N, R, HEADS, HEAD_DIM = 259, 320, 700, 8, 4, 24  # so many rows and columns that products have units of all sizes


@pytest.fixture(autouse=True)
def threads_restored() -> Iterator[None]:
    before = kernels.threads()
    yield
    kernels.set_threads(before)


def calls(rng: np.random.Generator, dtype: str) -> dict[str, dict[str, Any]]:
    """Arguments of each operation, without outputs."""

    def random(*shape: int, dtype: str = "f32") -> Array:
        return narrow(rng.standard_normal(shape), dtype)

    w = stored(rng, "Q4_1", N, K).matrix
    qkv = {name: random(T, HEADS * HEAD_DIM, dtype=dtype) for name in "qkv"}
    packed = {"heads": HEADS, "kv_heads": HEADS, "cu_q": np.array([0, 70, 71, T], np.int32)}
    logits, targets = random(T, N), rng.integers(0, N, T).astype(np.int32)
    return {
        "linear": {"x": random(T, K, dtype=dtype), "w": w, "h": random(T, R, dtype=dtype), "b": random(R, N)},
        "linear_backward": {"dy": random(T, N, dtype=dtype), "w": w},
        "lora_in": {"x": random(T, K, dtype=dtype), "a": random(R, K)},
        "lora_gradient": {"dh": random(T, R, dtype=dtype), "x": random(T, K, dtype=dtype)},
        "rms_norm": {"x": random(T, K, dtype=dtype), "weight": random(K), "eps": 1e-6},
        "attention": {**qkv, **packed},
        "attention_backward": {
            "dout": random(T, HEADS * HEAD_DIM), **qkv, **packed,
            "out": random(T, HEADS * HEAD_DIM), "lse": random(HEADS, T) + 3,
        },
        "cross_entropy_tile": {"logits": logits, "first": 0, "targets": targets},
    }  # fmt: skip


OUTPUTS: dict[str, dict[str, tuple[int, ...]]] = {
    "linear": {"out": (T, N)},
    "linear_backward": {"dx": (T, K)},
    "lora_in": {"h": (T, R)},
    "lora_gradient": {"da": (R, K)},
    "rms_norm": {"out": (T, K)},
    "attention": {"out": (T, HEADS * HEAD_DIM), "lse": (HEADS, T)},
    "attention_backward": {"delta": (HEADS, T), **dict.fromkeys(("dq", "dk", "dv"), (T, HEADS * HEAD_DIM))},
    "cross_entropy_tile": {"reference": (T,), "sum": (T,), "target_logit": (T,), "p": (T, N), "dh": (T, K)},
}


@pytest.mark.parametrize("isa", VECTOR_SETS)
@sweep(pytest.mark.parametrize("dtype", ["f32", "bf16"]), pytest.mark.parametrize("operation", OUTPUTS))
def test_results_do_not_depend_on_the_threads(rng: np.random.Generator, isa: str, dtype: str, operation: str) -> None:
    arguments = calls(rng, dtype)[operation]
    results = []
    for count in (1, 2, 3, 7):
        kernels.set_threads(count)
        assert kernels.threads() == count
        outputs = {name: np.zeros(shape, np.float32) for name, shape in OUTPUTS[operation].items()}
        kernel(isa, operation, **arguments)(**outputs)
        results.append({name: array.tobytes() for name, array in outputs.items()})
        assert all(np.isfinite(array).all() for array in outputs.values())
    assert all(result == results[0] for result in results[1:])
