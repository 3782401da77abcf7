"""Codes of two bits and the slopes that they stand for; and an activation without a gate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.kernels.native import kernel
from tests.support.bf16 import narrow, widen
from tests.support.guard import Guarded
from tests.support.slopes import code_bytes, codes

from featherback.engine import kernels

Array = NDArray[Any]

SHAPES = [(1, 1), (2, 7), (7, 33), (3, 64), (33, 65), (5, 160), (4, 512)]
BOUNDS = np.float32([-1.5, -0.25, 0.75])
SLOPES = np.float32([-0.125, 0.25, 0.5, 1.0625])
isas = pytest.mark.parametrize("isa", kernels.available())


@isas
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_codes(rng: np.random.Generator, isa: str, dtype: str) -> None:
    for T, F in SHAPES:
        x = rng.standard_normal((T, F))
        x[0, 0] = BOUNDS[1]  # a bound itself is not exceeded
        x = narrow(x, dtype)
        found = Guarded((T, -(-F // 64) * 16), np.uint8)
        kernel(isa, "slope_codes", bounds=BOUNDS)(x=x, codes=found.view)
        np.testing.assert_array_equal(found.view, code_bytes(codes(widen(x), BOUNDS)))
        assert found.surroundings_intact()


@isas
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_slopes(rng: np.random.Generator, isa: str, dtype: str) -> None:
    for T, F in SHAPES:
        chosen, da = rng.integers(0, 4, (T, F)), narrow(rng.standard_normal((T, F)), "f32")
        dz = Guarded((T, F), narrow(np.zeros(1), dtype).dtype)
        kernel(isa, "slope_backward", slopes=SLOPES)(da=da, codes=code_bytes(chosen), dz=dz.view)
        np.testing.assert_array_equal(dz.view, narrow(da * SLOPES[chosen], dtype))
        assert dz.surroundings_intact()


@isas
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "relu2"])
def test_an_activation_without_a_gate_multiplies_by_one(rng: np.random.Generator, isa: str, activation: str) -> None:
    for dtype in ("f32", "bf16"):
        z, da = narrow(3 * rng.standard_normal((7, 37)), dtype), narrow(rng.standard_normal((7, 37)), "f32")
        ones = narrow(np.ones((7, 37)), dtype)
        a, dz, with_ones, gradient, unused = (np.zeros_like(z) for _ in range(5))
        kernel(isa, "glu", activation=activation)(gate=z, up=None, out=a)
        kernel(isa, "glu", activation=activation)(gate=z, up=ones, out=with_ones)
        np.testing.assert_array_equal(a, with_ones)
        again = np.zeros_like(a)
        kernel(isa, "glu_backward", activation=activation)(da=da, gate=z, up=None, dgate=dz, dup=None, a=again)
        kernel(isa, "glu_backward", activation=activation)(da=da, gate=z, up=ones, dgate=gradient, dup=unused)
        np.testing.assert_array_equal(dz, gradient)
        np.testing.assert_array_equal(again, a)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, q: kernels.slope_codes(x, BOUNDS[:2], q), "bounds"),
        (lambda x, q: kernels.slope_codes(x, BOUNDS, q[:, :-1]), "codes"),
        (lambda x, q: kernels.slope_backward(x, q, SLOPES[:3], x), "slopes"),
        (lambda x, q: kernels.slope_backward(x, q[1:], SLOPES, x), "codes"),
        (lambda x, q: kernels.glu(x, None, x, "clipped_silu"), "needs up"),
        (lambda x, q: kernels.glu_backward(x, x, None, x, x, "silu"), "dup"),
        (lambda x, q: kernels.layer_norm(x, x[0, 1:], None, 1e-5, x), "weight"),
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(np.zeros((2, 70), np.float32), np.zeros((2, 32), np.uint8))
