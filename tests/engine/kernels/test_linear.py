"""linear, linear_backward, lora_in, lora_gradient: the projection with its adapter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.kernels import oracles
from tests.engine.kernels.native import REFERENCE, VECTOR_SETS, kernel, stored, using
from tests.support.bf16 import narrow, widen
from tests.support.check import Bound, Output, check_gradient, check_op, compare, filling
from tests.support.sweep import sweep

from featherback.engine import kernels

Array = NDArray[Any]

# T, K (in), N (out), rank, type: lengths around the tiles, widths off them, every stored type.
SHAPES = [
    (1, 3, 9, 1, "F32"),
    (2, 31, 5, 3, "F16"),
    (7, 96, 33, 8, "Q4_0"),
    (33, 160, 70, 16, "Q8_0"),
    (257, 96, 131, 33, "Q4_1"),
    (5, 256, 17, 8, "Q4_K"),
    (33, 512, 96, 8, "Q6_K"),
    (7, 768, 40, 3, "Q5_K"),
    (13, 64, 257, 8, "Q5_0"),
    (3, 288, 48, 1, "Q5_1"),
    (65, 129, 127, 8, "BF16"),
    (33, 1056, 200, 0, "Q4_0"),
    (129, 2080, 24, 8, "Q4_1"),
    (1, 1184, 40, 3, "Q4_0"),
    (4, 608, 19, 8, "Q4_1"),
    (2, 544, 33, 0, "Q5_0"),
    (3, 768, 50, 1, "Q4_K"),
    (1, 1280, 21, 8, "Q6_K"),
    (33, 416, 70, 8, "IQ4_NL"),
    (2, 1184, 40, 3, "IQ4_NL"),
    (33, 416, 70, 8, "MXFP4"),
    (33, 416, 70, 8, "AFFINE8"),
    (7, 96, 257, 0, "AFFINE8"),
    (33, 416, 70, 8, "TERNARY"),
    (7, 96, 257, 0, "TERNARY"),
    (1, 1184, 40, 3, "TERNARY"),
    (1, 1184, 40, 3, "MXFP4"),
    (7, 96, 257, 0, "MXFP4"),
    (33, 768, 70, 8, "Q2_K"),
    (1, 1280, 21, 3, "Q2_K"),
    (65, 512, 40, 0, "Q3_K"),
    (2, 768, 33, 8, "Q3_K"),
    (13, 768, 70, 8, "IQ4_XS"),
    (4, 1280, 19, 1, "IQ4_XS"),
    (33, 512, 24, 8, "TQ1_0"),
    (1, 768, 40, 3, "TQ1_0"),
    (7, 256, 257, 8, "TQ2_0"),
    (3, 768, 21, 0, "TQ2_0"),
    (33, 768, 70, 8, "IQ1_S"),
    (1, 1280, 21, 3, "IQ1_S"),
    (9, 512, 131, 8, "IQ2_XXS"),
    (2, 768, 40, 0, "IQ2_XXS"),
    (33, 768, 33, 3, "IQ2_XS"),
    (1, 512, 19, 8, "IQ2_XS"),
    (65, 256, 70, 8, "IQ2_S"),
    (4, 768, 21, 3, "IQ2_S"),
    (13, 768, 48, 8, "IQ3_XXS"),
    (1, 1280, 33, 0, "IQ3_XXS"),
    (33, 512, 70, 8, "IQ3_S"),
    (3, 768, 17, 1, "IQ3_S"),
]
LONG = "T{}-K{}-N{}-r{}-{}".format
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: LONG(*shape))
dtypes = pytest.mark.parametrize("dtype", ["f32", "bf16"])
isas = pytest.mark.parametrize("isa", VECTOR_SETS)
accumulates = pytest.mark.parametrize("accumulate", [False, True], ids=["overwrite", "accumulate"])


def random(rng: np.random.Generator, rows: int, cols: int, dtype: str = "f32") -> Array:
    return narrow(rng.standard_normal((rows, cols)), dtype)


def forward_inputs(rng: np.random.Generator, T: int, K: int, N: int, r: int, dtype: str) -> dict[str, Array]:
    inputs = {"x": random(rng, T, K, dtype), "bias": rng.standard_normal(N).astype(np.float32)}
    if r:
        inputs |= {"h": random(rng, T, r, dtype), "b": random(rng, r, N)}
    return inputs


def backward_inputs(rng: np.random.Generator, T: int, K: int, N: int, r: int, dtype: str) -> dict[str, Array]:
    inputs = {"dy": random(rng, T, N, dtype)}
    if r:
        inputs |= {"dh": random(rng, T, r, dtype), "a": random(rng, r, K)}
    return inputs


def bound(operation: Any, inputs: dict[str, Array], w: Array, terms: int, start: Any = None) -> Bound:
    """Return the error bound of oracles.linear or oracles.linear_backward: the operation on absolute values."""
    wide = {name: widen(array) for name, array in inputs.items()} | {"w": w}
    magnitude = operation(**{name: np.abs(array) for name, array in wide.items()})
    spread = np.sqrt(operation(**{name: array**2 for name, array in wide.items()}))
    return Bound(operation.__name__, magnitude + (0 if start is None else np.abs(start)), terms, spread)


# --- the reference ------------------------------------------------------------------------------------------


@sweep(accumulates, pytest.mark.parametrize("shape", SHAPES[:11], ids=lambda shape: LONG(*shape)))
def test_reference_forward(rng: np.random.Generator, shape: Any, accumulate: bool) -> None:
    T, K, N, r, type = shape
    w = stored(rng, type, N, K)
    inputs = forward_inputs(rng, T, K, N, r, "bf16")
    start = rng.standard_normal((T, N)) if accumulate else None
    check_op(
        kernel(REFERENCE, "linear", w=w.matrix, accumulate=accumulate),
        filling(lambda x, bias, h, b: {"out": oracles.linear(x, w.values, bias, h, b)}, accumulate),
        inputs,
        {"out": Output((T, N), "f64", start)},
        {"out": bound(oracles.linear, inputs, w.values, K + r, start)},
        compute="f64",
    )


@sweep(accumulates, pytest.mark.parametrize("shape", SHAPES[:11], ids=lambda shape: LONG(*shape)))
def test_reference_backward(rng: np.random.Generator, shape: Any, accumulate: bool) -> None:
    T, K, N, r, type = shape
    w = stored(rng, type, N, K)
    inputs = backward_inputs(rng, T, K, N, r, "f32")
    start = rng.standard_normal((T, K)) if accumulate else None
    check_op(
        kernel(REFERENCE, "linear_backward", w=w.matrix, accumulate=accumulate),
        filling(lambda dy, dh, a: {"dx": oracles.linear_backward(dy, w.values, dh, a)}, accumulate),
        inputs,
        {"dx": Output((T, K), "f64", start)},
        {"dx": bound(oracles.linear_backward, inputs, w.values, N + r, start)},
        compute="f64",
    )


@sweep(accumulates, pytest.mark.parametrize(("T", "K", "r"), [(1, 5, 3), (7, 33, 8), (33, 20, 1)]))
def test_reference_lora_factors(rng: np.random.Generator, accumulate: bool, T: int, K: int, r: int) -> None:
    scale = -0.375
    fixed: dict[str, Any] = {"scale": scale, "accumulate": accumulate}
    x, a, dh = random(rng, T, K, "f64"), random(rng, r, K, "f64"), random(rng, T, r, "f64")
    check_op(
        kernel(REFERENCE, "lora_in", **fixed),
        filling(lambda x, a: {"h": scale * x @ a.T}, accumulate),
        {"x": x, "a": a},
        {"h": Output((T, r), "f64", rng.standard_normal((T, r)) if accumulate else None)},
        {"h": Bound("lora_in", np.abs(x) @ np.abs(a).T + 4, K)},
        compute="f64",
    )
    check_op(
        kernel(REFERENCE, "lora_gradient", **fixed),
        filling(lambda dh, x: {"da": scale * dh.T @ x}, accumulate),
        {"dh": dh, "x": x},
        {"da": Output((r, K), "f64", rng.standard_normal((r, K)) if accumulate else None)},
        {"da": Bound("lora_gradient", np.abs(dh).T @ np.abs(x) + 4, T)},
        compute="f64",
    )


def projection(w: Any, scale: float, x: Array, bias: Array, a: Array, bt: Array) -> tuple[Array, Array]:
    """y and h of y = x W^T + bias + h Bt, h = scale x A^T, by the reference kernels in float64."""
    h, y = np.full((len(x), len(a)), np.nan), np.full((len(x), w.shape[0]), np.nan)
    kernel(REFERENCE, "lora_in", x=x, a=a, scale=scale)(h=h)
    kernel(REFERENCE, "linear", x=x, w=w, bias=bias, h=h, b=bt)(out=y)
    return y, h


@pytest.mark.parametrize(("T", "K", "N", "r"), [(1, 5, 3, 1), (7, 33, 20, 3), (2, 64, 31, 8)])
def test_reference_gradients_of_a_projection(rng: np.random.Generator, T: int, K: int, N: int, r: int) -> None:
    """The adapter's whole backward, composed as the block does, against autograd and finite differences."""
    scale = 1.75  # exact in float32, as every kernel holds it
    w = stored(rng, "F32", N, K)
    inputs = {"x": (T, K), "a": (r, K), "bt": (r, N)}
    leaves = {name: rng.standard_normal(shape) for name, shape in inputs.items()}
    bias = rng.standard_normal(N).astype(np.float32)
    dy = rng.standard_normal((T, N))
    x, a, bt = leaves["x"], leaves["a"], leaves["bt"]

    y, h = projection(w.matrix, scale, bias=bias, **leaves)
    dh, da, dbt, dx = (np.full(shape, np.nan) for shape in [(T, r), (r, K), (r, N), (T, K)])
    kernel(REFERENCE, "lora_gradient", dh=h, x=dy)(da=dbt)  # dBt = (s x A^T)^T dy
    kernel(REFERENCE, "lora_in", x=dy, a=bt, scale=scale)(h=dh)  # dh = s dy Bt^T
    kernel(REFERENCE, "lora_gradient", dh=dh, x=x)(da=da)  # dA = dh^T x
    kernel(REFERENCE, "linear_backward", dy=dy, w=w.matrix, dh=dh, a=a)(dx=dx)  # dx = dy W + dh A

    results, gradients = oracles.autograd(oracles.lora_linear(w.values, scale), {**leaves, "bias": bias}, {"y": dy})
    np.testing.assert_allclose(y, results["y"], rtol=1e-12, atol=1e-12)
    for name, ours in {"x": dx, "a": da, "bt": dbt}.items():
        np.testing.assert_allclose(ours, gradients[name], rtol=1e-11, atol=1e-12, err_msg=name)
    check_gradient(
        lambda **arrays: float(np.sum(dy * projection(w.matrix, scale, bias=bias, **arrays)[0])),
        leaves,
        {"x": dx, "a": da, "bt": dbt},
        rng,
    )


# --- the instruction sets -----------------------------------------------------------------------------------


@isas
@sweep(dtypes, accumulates, shapes)
def test_linear(rng: np.random.Generator, isa: str, shape: Any, dtype: str, accumulate: bool) -> None:
    T, K, N, r, type = shape
    w = stored(rng, type, N, K)
    inputs = forward_inputs(rng, T, K, N, r, dtype)
    start = rng.standard_normal((T, N)) if accumulate else None
    check_op(
        kernel(isa, "linear", w=w.matrix, accumulate=accumulate),
        kernel(REFERENCE, "linear", w=w.matrix, accumulate=accumulate),
        inputs,
        {"out": Output((T, N), "f32", start)},
        {"out": bound(oracles.linear, inputs, w.values, K + r, start)},
        compute=dtype,
    )


@isas
@sweep(dtypes, accumulates, shapes)
def test_linear_backward(rng: np.random.Generator, isa: str, shape: Any, dtype: str, accumulate: bool) -> None:
    T, K, N, r, type = shape
    w = stored(rng, type, N, K)
    inputs = backward_inputs(rng, T, K, N, r, dtype)
    start = rng.standard_normal((T, K)) if accumulate else None
    check_op(
        kernel(isa, "linear_backward", w=w.matrix, accumulate=accumulate),
        kernel(REFERENCE, "linear_backward", w=w.matrix, accumulate=accumulate),
        inputs,
        {"dx": Output((T, K), "f32", start)},
        {"dx": bound(oracles.linear_backward, inputs, w.values, N + r, start)},
        compute=dtype,
    )


@isas
@sweep(dtypes, pytest.mark.parametrize("type", ["F32", "BF16", "Q8_0", "Q4_1", "Q5_K"]))
def test_slices_of_the_weight(rng: np.random.Generator, isa: str, type: str, dtype: str) -> None:
    """The MLP's tiles: rows of gate and up, columns of down. Bias and adapter absent."""
    w = stored(rng, type, 90, 1024)
    T = 9
    for rows, cols in [((17, 71), None), (None, (256, 768)), ((1, 90), (512, 1024))]:
        matrix, values = w.slice(rows, cols)
        N, K = values.shape
        x, dy = {"x": random(rng, T, K, dtype)}, {"dy": random(rng, T, N, dtype)}
        check_op(
            kernel(isa, "linear", w=matrix),
            kernel(REFERENCE, "linear", w=matrix),
            x,
            {"out": Output((T, N))},
            {"out": bound(oracles.linear, x, values, K)},
            compute=dtype,
        )
        check_op(
            kernel(isa, "linear_backward", w=matrix),
            kernel(REFERENCE, "linear_backward", w=matrix),
            dy,
            {"dx": Output((T, K))},
            {"dx": bound(oracles.linear_backward, dy, values, N)},
            compute=dtype,
        )


@pytest.mark.skipif("avx512bf16" not in VECTOR_SETS, reason="this CPU has no AVX512-BF16")
@sweep(
    pytest.mark.parametrize("type", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"]),
    pytest.mark.parametrize("T", [1, 2, 3, 4]),
)
def test_codes_of_few_rows_are_not_rounded(rng: np.random.Generator, type: str, T: int) -> None:
    """Decoding multiplies the codes directly, so the bound of fp32 holds for bf16 operands."""
    K, N = 768 if type.endswith("K") else 864, 37
    w, x = stored(rng, type, N, K), {"x": random(rng, T, K, "bf16")}
    check_op(
        kernel("avx512bf16", "linear", w=w.matrix),
        kernel(REFERENCE, "linear", w=w.matrix),
        x,
        {"out": Output((T, N))},
        {"out": bound(oracles.linear, x, w.values, K)},
    )


@isas
def test_exact_operands_in_bf16(rng: np.random.Generator, isa: str) -> None:
    """With W, b and a that bf16 holds exactly, nothing is rounded in between, so the bound of fp32 holds."""
    T, K, N, r = 33, 161, 75, 8
    w = stored(rng, "BF16", N, K)
    exact = {name: widen(random(rng, *shape, "bf16")).astype(np.float32) for name, shape in
             {"b": (r, N), "a": (r, K)}.items()}  # fmt: skip
    forward = forward_inputs(rng, T, K, N, r, "bf16") | {"b": exact["b"]}
    backward = backward_inputs(rng, T, K, N, r, "bf16") | {"a": exact["a"]}
    down = {"x": forward["x"], "a": exact["a"]}
    check_op(
        kernel(isa, "linear", w=w.matrix),
        kernel(REFERENCE, "linear", w=w.matrix),
        forward,
        {"out": Output((T, N))},
        {"out": bound(oracles.linear, forward, w.values, K + r)},
    )
    check_op(
        kernel(isa, "linear_backward", w=w.matrix),
        kernel(REFERENCE, "linear_backward", w=w.matrix),
        backward,
        {"dx": Output((T, K))},
        {"dx": bound(oracles.linear_backward, backward, w.values, N + r)},
    )
    check_op(
        kernel(isa, "lora_in"),
        kernel(REFERENCE, "lora_in"),
        down,
        {"h": Output((T, r))},
        {"h": Bound("lora_in", np.abs(widen(down["x"])) @ np.abs(exact["a"]).T, K)},
    )


ADAPTERS = [(1, 1, 1), (2, 31, 3), (7, 96, 8), (33, 160, 16), (257, 100, 33), (65, 1030, 8), (5, 2080, 64)]
adapters = pytest.mark.parametrize(("T", "K", "r"), ADAPTERS)


@isas
@sweep(dtypes, accumulates, adapters)
def test_lora_in(rng: np.random.Generator, isa: str, dtype: str, accumulate: bool, T: int, K: int, r: int) -> None:
    inputs = {"x": random(rng, T, K, dtype), "a": random(rng, r, K)}
    size = np.abs(widen(inputs["x"])) @ np.abs(widen(inputs["a"])).T
    start = rng.standard_normal((T, r)) if accumulate else None
    for stored_as in ["f32"] if accumulate else ["f32", "bf16"]:
        check_op(
            kernel(isa, "lora_in", scale=1.7, accumulate=accumulate),
            kernel(REFERENCE, "lora_in", scale=1.7, accumulate=accumulate),
            inputs,
            {"h": Output((T, r), stored_as, start)},
            {"h": Bound("lora_in", 1.7 * size + (0 if start is None else np.abs(start)), K)},
            compute=dtype,
        )


PARTS = [(0, 1, 8), (1, 2, 3), (3, 30, 16), (30, 57, 1)]  # first, last, rank; row 2 has no part


@isas
@sweep(dtypes, accumulates)
def test_parts(rng: np.random.Generator, isa: str, dtype: str, accumulate: bool) -> None:
    """Every part has the bits of its own product, and nothing else is written."""
    x, h = random(rng, 57, 100, dtype), random(rng, 57, 16, dtype)
    out = rng.standard_normal((57, 100)).astype(np.float32)
    a, b = ([random(rng, r, 100) for _, _, r in PARTS] for _ in range(2))
    expected_h, expected_out = h.copy(), out.copy()
    ours_h, ours_out = h.copy(), out.copy()
    with using(isa):
        for (first, last, r), own in zip(PARTS, a):
            rows = expected_h[first:last, :r]
            kernels.lora_in(x[first:last], own, rows, 1.7, accumulate=accumulate)
        for (first, last, r), own in zip(PARTS, b):
            part, exact = h[first:last], expected_out[first:last] + widen(h[first:last, :r]) @ widen(own)
            kernels.lora_out_parts(part, [(0, last - first, own)], expected_out[first:last])
            size = np.abs(out[first:last]) + np.abs(widen(part[:, :r])) @ np.abs(widen(own))
            compare("out", expected_out[first:last], exact, Bound("linear", size, r), stored="f32", compute=dtype)
        kernels.lora_in_parts(
            x, [(first, last, own, 1.7) for (first, last, _), own in zip(PARTS, a)], ours_h, accumulate=accumulate
        )
        kernels.lora_out_parts(h, [(first, last, own) for (first, last, _), own in zip(PARTS, b)], ours_out)
    np.testing.assert_array_equal(ours_h, expected_h)
    np.testing.assert_array_equal(ours_out, expected_out)
    np.testing.assert_array_equal(ours_h[2], h[2])
    np.testing.assert_array_equal(ours_out[2], out[2])


@isas
@sweep(dtypes, accumulates, adapters)
def test_lora_gradient(
    rng: np.random.Generator, isa: str, dtype: str, accumulate: bool, T: int, K: int, r: int
) -> None:
    inputs = {"dh": random(rng, T, r, dtype), "x": random(rng, T, K, dtype)}
    size = np.abs(widen(inputs["dh"])).T @ np.abs(widen(inputs["x"]))
    start = rng.standard_normal((r, K)) if accumulate else None
    check_op(
        kernel(isa, "lora_gradient", scale=-0.3, accumulate=accumulate),
        kernel(REFERENCE, "lora_gradient", scale=-0.3, accumulate=accumulate),
        inputs,
        {"da": Output((r, K), "f32", start)},
        {"da": Bound("lora_gradient", 0.3 * size + (0 if start is None else np.abs(start)), T)},
        compute=dtype,
    )
