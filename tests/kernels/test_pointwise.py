"""RMS norm, RoPE and SwiGLU: the operations between the projections."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernels import oracles
from tests.kernels.native import REFERENCE, VECTOR_SETS, kernel
from tests.support.bf16 import narrow, widen
from tests.support.check import Bound, Output, check_gradient, check_op, filling

Array = NDArray[Any]

SHAPES = [(1, 1), (2, 7), (7, 33), (33, 64), (257, 100), (3, 896), (5, 1531)]
shapes = pytest.mark.parametrize(("T", "D"), SHAPES)
dtypes = pytest.mark.parametrize("dtype", ["f32", "bf16"])
isas = pytest.mark.parametrize("isa", VECTOR_SETS)
EPS = float(np.float32(1e-5))


def random(rng: np.random.Generator, *shape: int, dtype: str = "f32") -> Array:
    return narrow(rng.standard_normal(shape), dtype)


# --- RMS norm -----------------------------------------------------------------------------------------------


@shapes
def test_reference_rms_norm(rng: np.random.Generator, T: int, D: int) -> None:
    x, dn, start = (random(rng, T, D, dtype="f64") for _ in range(3))
    weight = random(rng, D)
    results, gradients = oracles.autograd(oracles.rms_norm(weight, EPS), {"x": x}, {"out": dn})
    check_op(
        kernel(REFERENCE, "rms_norm", eps=EPS),
        filling(lambda x: results),
        {"x": x, "weight": weight},
        {"out": Output((T, D), "f64")},
        {"out": Bound("rms_norm", results["out"], D)},
        compute="f64",
    )
    check_op(
        kernel(REFERENCE, "rms_norm_backward", eps=EPS),
        filling(lambda x: {"dx": gradients["x"]}, accumulate=True),
        {"dn": dn, "x": x, "weight": weight},
        {"dx": Output((T, D), "f64", start)},
        {"dx": Bound("rms_norm_backward", oracles.rms_norm_backward_magnitude(dn, x, weight, EPS) + 4, D)},
        compute="f64",
    )

    def value(x: Array) -> float:
        out = np.full_like(x, np.nan)
        kernel(REFERENCE, "rms_norm", eps=EPS, weight=weight)(x=x, out=out)
        return float(np.sum(dn * out))

    if D > 1:  # at width 1 the norm is a sign and its gradient all but vanishes
        dx = np.zeros_like(x)
        kernel(REFERENCE, "rms_norm_backward", eps=EPS, weight=weight)(dn=dn, x=x, dx=dx)
        check_gradient(value, {"x": x}, {"x": dx}, rng, step=1e-4)


@isas
@dtypes
@pytest.mark.parametrize("stored", ["f32", "bf16"])
@shapes
def test_rms_norm(rng: np.random.Generator, isa: str, dtype: str, stored: str, T: int, D: int) -> None:
    inputs = {"x": random(rng, T, D, dtype=dtype), "weight": random(rng, D)}
    if T > 2:
        inputs["x"][1] = 0  # a row of zeros: eps alone keeps it finite
        inputs["x"][2] = narrow(1e4 * widen(inputs["x"][2]), dtype)
    size = kernel_result("rms_norm", inputs, (T, D), eps=EPS)
    check_op(
        kernel(isa, "rms_norm", eps=EPS),
        kernel(REFERENCE, "rms_norm", eps=EPS),
        inputs,
        {"out": Output((T, D), stored)},
        {"out": Bound("rms_norm", size, D)},
    )


@isas
@dtypes
@shapes
def test_rms_norm_backward(rng: np.random.Generator, isa: str, dtype: str, T: int, D: int) -> None:
    inputs = {"dn": random(rng, T, D), "x": random(rng, T, D, dtype=dtype), "weight": random(rng, D)}
    start = rng.standard_normal((T, D))
    wide = {name: widen(array) for name, array in inputs.items()}
    size = oracles.rms_norm_backward_magnitude(**wide, eps=EPS)
    check_op(
        kernel(isa, "rms_norm_backward", eps=EPS),
        kernel(REFERENCE, "rms_norm_backward", eps=EPS),
        inputs,
        {"dx": Output((T, D), "f32", start)},
        {"dx": Bound("rms_norm_backward", size + np.abs(start), D)},
    )


def kernel_result(operation: str, inputs: dict[str, Array], shape: tuple[int, int], **fixed: Any) -> Array:
    out = np.full(shape, np.nan)
    kernel(REFERENCE, operation, **fixed)(**inputs, out=out)
    return out


# --- RoPE ---------------------------------------------------------------------------------------------------

orders = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
directions = pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
heads = pytest.mark.parametrize(
    ("T", "count", "head_dim"), [(1, 1, 2), (2, 3, 8), (7, 2, 24), (33, 3, 64), (5, 5, 80), (257, 1, 128)]
)


@orders
@heads
def test_reference_rope(
    rng: np.random.Generator, interleaved: bool, T: int, count: int, head_dim: int
) -> None:
    """The rotation is autograd's, its inverse is autograd's backward, and undoes it."""
    x, dout = (random(rng, T, count * head_dim, dtype="f64") for _ in range(2))
    cos, sin = oracles.angles(rng.integers(0, 5000, T), head_dim)
    fixed: dict[str, Any] = {"head_dim": head_dim, "interleaved": interleaved}
    results, gradients = oracles.autograd(oracles.rope(cos, sin, **fixed), {"x": x}, {"out": dout})
    tables = {"cos": cos, "sin": sin}
    for inverse, given, expected in [(False, x, results["out"]), (True, dout, gradients["x"])]:
        check_op(
            kernel(REFERENCE, "rope", inverse=inverse, **fixed),
            filling(lambda expected=expected: {"out": expected}),
            {"x": given, **tables},
            {"out": Output(x.shape, "f64")},
            {"out": Bound("rope", np.abs(expected) + 8)},
            compute="f64",
        )
    back = np.full_like(x, np.nan)
    kernel(REFERENCE, "rope", inverse=True, **fixed, **tables)(x=results["out"], out=back)
    np.testing.assert_allclose(back, x, rtol=0, atol=1e-6)  # cos^2 + sin^2 of float32 tables

    def value(x: Array) -> float:
        return float(np.sum(dout * kernel_result("rope", {"x": x}, x.shape, **fixed, **tables)))

    check_gradient(value, {"x": x}, gradients, rng)


@isas
@orders
@directions
@heads
def test_rope(
    rng: np.random.Generator, isa: str, interleaved: bool, inverse: bool, T: int, count: int, head_dim: int
) -> None:
    cos, sin = oracles.angles(rng.integers(0, 5000, T), head_dim)
    x = random(rng, T, count * head_dim)
    fixed: dict[str, Any] = {"head_dim": head_dim, "interleaved": interleaved, "inverse": inverse}
    partner = kernel_result(
        "rope", {"x": np.ones_like(x)}, x.shape, cos=np.abs(cos), sin=-np.abs(sin), **fixed
    )
    bound = {"out": Bound("rope", np.abs(x).max() * (np.abs(partner) + 1))}
    check_op(
        kernel(isa, "rope", **fixed),
        kernel(REFERENCE, "rope", **fixed),
        {"x": x, "cos": cos, "sin": sin},
        {"out": Output(x.shape)},
        bound,
    )

    def in_place(instruction_set: str) -> Any:
        def run(out: Array) -> None:
            kernel(instruction_set, "rope", cos=cos, sin=sin, **fixed)(x=out, out=out)

        return run

    check_op(in_place(isa), in_place(REFERENCE), {}, {"out": Output(x.shape, "f32", x)}, bound)


# --- SwiGLU -------------------------------------------------------------------------------------------------


@shapes
def test_reference_swiglu(rng: np.random.Generator, T: int, D: int) -> None:
    gate, up, da = (random(rng, T, D, dtype="f64") for _ in range(3))
    leaves = {"gate": gate, "up": up}
    results, gradients = oracles.autograd(oracles.swiglu, leaves, {"out": da})
    check_op(
        kernel(REFERENCE, "swiglu"),
        filling(lambda: results),
        leaves,
        {"out": Output((T, D), "f64")},
        {"out": Bound("swiglu", results["out"])},
        compute="f64",
    )
    check_op(
        kernel(REFERENCE, "swiglu_backward"),
        filling(lambda: {"dgate": gradients["gate"], "dup": gradients["up"], "a": results["out"]}),
        {"da": da, **leaves},
        {name: Output((T, D), "f64") for name in ("dgate", "dup", "a")},
        {
            "dgate": Bound("swiglu", da * up * (1 + np.abs(gate))),
            "dup": Bound("swiglu", da * gate),
            "a": Bound("swiglu", results["out"]),
        },
        compute="f64",
    )
    check_gradient(
        lambda **arrays: float(np.sum(da * kernel_result("swiglu", arrays, (T, D)))), leaves, gradients, rng
    )


@isas
@pytest.mark.parametrize("stored", ["f32", "bf16"])
@shapes
def test_swiglu(rng: np.random.Generator, isa: str, stored: str, T: int, D: int) -> None:
    gate, up, da = (random(rng, T, D) for _ in range(3))
    if T > 2:  # far out on both sides, where the exponential overflows or vanishes
        gate[1] *= 60
        gate[2] = np.resize(np.array([-1e4, -104, -89, -88, -87, -20, -0.0, 0.0, 1e-30, 20, 88, 89, 1e4]), D)
    results = oracles.autograd(oracles.swiglu, {"gate": gate, "up": up}, {"out": da})[0]
    check_op(
        kernel(isa, "swiglu"),
        kernel(REFERENCE, "swiglu"),
        {"gate": gate, "up": up},
        {"out": Output((T, D), stored)},
        {"out": Bound("swiglu", results["out"])},
    )
    wide = gate.astype(np.float64)
    sigmoid = 1 / (1 + np.exp(-np.clip(wide, -500, None)))
    check_op(
        kernel(isa, "swiglu_backward"),
        kernel(REFERENCE, "swiglu_backward"),
        {"da": da, "gate": gate, "up": up},
        {name: Output((T, D), stored) for name in ("dgate", "dup", "a")},
        {
            # From |gate| = 17 on, 1 - sigmoid is exactly 0 or 1 in float32.
            "dgate": Bound("swiglu", da * up * sigmoid * (1 + np.minimum(np.abs(wide), 17))),
            "dup": Bound("swiglu", da * wide * sigmoid),
            "a": Bound("swiglu", results["out"]),
        },
    )
