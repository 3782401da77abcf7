"""RMS norm, RoPE and the gated units: the operations between the projections."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.kernels import oracles
from tests.engine.kernels.native import REFERENCE, VECTOR_SETS, kernel
from tests.support.bf16 import narrow, widen
from tests.support.check import Bound, Output, check_gradient, check_op, filling
from tests.support.guard import Guarded
from tests.support.sweep import sweep

from featherback.engine import kernels

Array = NDArray[Any]

SHAPES = [(1, 1), (2, 7), (7, 33), (33, 64), (257, 100), (3, 896), (5, 1531)]
shapes = pytest.mark.parametrize(("T", "D"), SHAPES)
dtypes = pytest.mark.parametrize("dtype", ["f32", "bf16"])
isas = pytest.mark.parametrize("isa", VECTOR_SETS)
EPS = float(np.float32(1e-5))


def random(rng: np.random.Generator, *shape: int, dtype: str = "f32") -> Array:
    return narrow(rng.standard_normal(shape), dtype)


# --- RMS norm -----------------------------------------------------------------------------------------------


# Columns, and columns per group: rows of one group, heads, a single column.
GROUPED = [(1, 1, 1), (2, 7, 7), (33, 64, 64), (5, 1531, 1531), (257, 100, 100), (7, 48, 16), (3, 330, 33), (9, 6, 1)]
groups = pytest.mark.parametrize(("T", "D", "group"), GROUPED)
accumulates = pytest.mark.parametrize("accumulate", [False, True], ids=["overwrite", "accumulate"])


@sweep(groups, accumulates)
def test_reference_rms_norm(rng: np.random.Generator, T: int, D: int, group: int, accumulate: bool) -> None:
    x, dn, start = (random(rng, T, D, dtype="f64") for _ in range(3))
    weight = random(rng, group)
    results, gradients = oracles.autograd(oracles.rms_norm(weight, EPS), {"x": x}, {"out": dn})
    output = Output((T, D), "f64", start if accumulate else None)
    check_op(
        kernel(REFERENCE, "rms_norm", eps=EPS, accumulate=accumulate),
        filling(lambda x: results, accumulate),
        {"x": x, "weight": weight},
        {"out": output},
        {"out": Bound("rms_norm", np.abs(results["out"]) + 4 * accumulate, group)},
        compute="f64",
    )
    size = oracles.rms_norm_backward_magnitude(dn, x, weight, EPS)
    check_op(
        kernel(REFERENCE, "rms_norm_backward", eps=EPS, accumulate=accumulate),
        filling(lambda x: {"dx": gradients["x"]}, accumulate),
        {"dn": dn, "x": x, "weight": weight},
        {"dx": output},
        {"dx": Bound("rms_norm_backward", size + 4 * accumulate, group)},
        compute="f64",
        vanishing=("dx",) if group == 1 else (),  # at width 1 the norm is a sign
    )

    def value(x: Array) -> float:
        out = np.full_like(x, np.nan)
        kernel(REFERENCE, "rms_norm", eps=EPS, weight=weight)(x=x, out=out)
        return float(np.sum(dn * out))

    if group > 1:
        dx = np.zeros_like(x)
        kernel(REFERENCE, "rms_norm_backward", eps=EPS, weight=weight)(dn=dn, x=x, dx=dx)
        check_gradient(value, {"x": x}, {"x": dx}, rng, step=1e-4)


@isas
@sweep(dtypes, pytest.mark.parametrize("stored", ["f32", "bf16", "added"]), groups)
def test_rms_norm(rng: np.random.Generator, isa: str, dtype: str, stored: str, T: int, D: int, group: int) -> None:
    inputs = {"x": random(rng, T, D, dtype=dtype), "weight": random(rng, group)}
    if T > 2:
        inputs["x"][1] = 0  # a row of zeros: eps alone keeps it finite
        inputs["x"][2] = narrow(1e4 * widen(inputs["x"][2]), dtype)
    size = np.abs(kernel_result("rms_norm", inputs, (T, D), eps=EPS))
    added = stored == "added"
    start = rng.standard_normal((T, D)) if added else None
    check_op(
        kernel(isa, "rms_norm", eps=EPS, accumulate=added),
        kernel(REFERENCE, "rms_norm", eps=EPS, accumulate=added),
        inputs,
        {"out": Output((T, D), "f32" if added else stored, start)},
        {"out": Bound("rms_norm", size if start is None else size + np.abs(start), group)},
    )


@isas
@sweep(dtypes, pytest.mark.parametrize("stored", ["f32", "bf16", "added"]), groups)
def test_rms_norm_backward(
    rng: np.random.Generator, isa: str, dtype: str, stored: str, T: int, D: int, group: int
) -> None:
    inputs = {"dn": random(rng, T, D), "x": random(rng, T, D, dtype=dtype), "weight": random(rng, group)}
    added = stored == "added"
    start = rng.standard_normal((T, D)) if added else None
    wide = {name: widen(array) for name, array in inputs.items()}
    size = oracles.rms_norm_backward_magnitude(**wide, eps=EPS)
    check_op(
        kernel(isa, "rms_norm_backward", eps=EPS, accumulate=added),
        kernel(REFERENCE, "rms_norm_backward", eps=EPS, accumulate=added),
        inputs,
        {"dx": Output((T, D), "f32" if added else stored, start)},
        {"dx": Bound("rms_norm_backward", size if start is None else size + np.abs(start), group)},
        vanishing=("dx",) if group == 1 else (),
    )


@pytest.mark.parametrize("isa", kernels.available())
@sweep(groups)
def test_norms_in_place(rng: np.random.Generator, isa: str, T: int, D: int, group: int) -> None:
    """out may be x, and dx may be dn: the results are bit-identical."""
    x, dn, weight = random(rng, T, D), random(rng, T, D), random(rng, group)
    forward = kernel(isa, "rms_norm", eps=EPS, weight=weight)
    backward = kernel(isa, "rms_norm_backward", eps=EPS, weight=weight, accumulate=False)
    apart, within = np.full_like(x, np.nan), Guarded.holding(x)
    forward(x=x, out=apart)
    forward(x=within.view, out=within.view)
    np.testing.assert_array_equal(within.view, apart)
    assert within.surroundings_intact()
    apart, within = np.full_like(x, np.nan), Guarded.holding(dn)
    backward(dn=dn, x=x, dx=apart)
    backward(dn=within.view, x=x, dx=within.view)
    np.testing.assert_array_equal(within.view, apart)
    assert within.surroundings_intact()


def kernel_result(operation: str, inputs: dict[str, Array], shape: tuple[int, int], **fixed: Any) -> Array:
    out = np.full(shape, np.nan)
    kernel(REFERENCE, operation, **fixed)(**inputs, out=out)
    return out


# --- RoPE ---------------------------------------------------------------------------------------------------

orders = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
directions = pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
heads = pytest.mark.parametrize(
    ("T", "count", "head_dim", "rotated"),
    [
        (1, 1, 2, 2), (2, 3, 8, 8), (7, 2, 24, 24), (33, 3, 64, 64), (5, 5, 80, 80), (257, 1, 128, 128),
        (7, 3, 24, 18), (3, 2, 8, 2), (33, 3, 128, 96),
    ],
)  # fmt: skip


@sweep(orders, heads)
def test_reference_rope(
    rng: np.random.Generator, interleaved: bool, T: int, count: int, head_dim: int, rotated: int
) -> None:
    """The rotation is autograd's, its inverse is autograd's backward, and undoes it."""
    x, dout = (random(rng, T, count * head_dim, dtype="f64") for _ in range(2))
    cos, sin = oracles.angles(rng.integers(0, 5000, T), rotated)
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
@sweep(orders, directions, heads)
def test_rope(
    rng: np.random.Generator,
    isa: str,
    interleaved: bool,
    inverse: bool,
    T: int,
    count: int,
    head_dim: int,
    rotated: int,
) -> None:
    cos, sin = oracles.angles(rng.integers(0, 5000, T), rotated)
    x = random(rng, T, count * head_dim)
    fixed: dict[str, Any] = {"head_dim": head_dim, "interleaved": interleaved, "inverse": inverse}
    partner = kernel_result("rope", {"x": np.ones_like(x)}, x.shape, cos=np.abs(cos), sin=-np.abs(sin), **fixed)
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


# --- gated linear units -------------------------------------------------------------------------------------

activations = pytest.mark.parametrize("activation", oracles.ACTIVATIONS)


@sweep(shapes, activations)
def test_reference_glu(rng: np.random.Generator, activation: str, T: int, D: int) -> None:
    gate, up, da = (random(rng, T, D, dtype="f64") for _ in range(3))
    gate[0, 0] = abs(gate[0, 0])  # a squared ReLU of one negative number is 0
    if activation == "clipped_silu":  # so that both clips matter, but not for the first number
        gate, up = (np.where(np.arange(T * D).reshape(T, D), 5, 1) * each for each in (gate, up))
    for kink in (0, 7, -7):  # finite differences do not step over it
        for each in (gate, up):
            each += 0.01 * (np.abs(each - kink) < 0.01) * np.sign(each - kink)
    leaves, fixed = {"gate": gate, "up": up}, {"activation": activation}
    results, gradients = oracles.autograd(oracles.glu(activation), leaves, {"out": da})
    size = gate**2 if activation == "relu2" else gate
    factor = 1 + np.abs(up) if activation == "clipped_silu" else up
    check_op(
        kernel(REFERENCE, "glu", **fixed),
        filling(lambda: results),
        leaves,
        {"out": Output((T, D), "f64")},
        {"out": Bound("glu", size * factor)},
        compute="f64",
    )
    check_op(
        kernel(REFERENCE, "glu_backward", **fixed),
        filling(lambda: {"dgate": gradients["gate"], "dup": gradients["up"], "a": results["out"]}),
        {"da": da, **leaves},
        {name: Output((T, D), "f64") for name in ("dgate", "dup", "a")},
        {
            "dgate": Bound("glu", da * factor * (1 + np.abs(gate)) * (1 + gate**2)),
            "dup": Bound("glu", da * size),
            "a": Bound("glu", size * factor),
        },
        compute="f64",
    )
    check_gradient(
        lambda **arrays: float(np.sum(da * kernel_result("glu", arrays, (T, D), **fixed))), leaves, gradients, rng
    )


@isas
@sweep(activations, dtypes, pytest.mark.parametrize("stored", ["f32", "bf16"]), shapes)
def test_glu(rng: np.random.Generator, isa: str, activation: str, dtype: str, stored: str, T: int, D: int) -> None:
    gate, up, da = (rng.standard_normal((T, D)) for _ in range(3))
    if T > 2:  # large values of both signs, where the exponential overflows or vanishes
        gate[1] *= 60
        gate[2] = np.resize(np.array([-1e4, -104, -89, -88, -87, -20, -0.0, 0.0, 1e-30, 20, 88, 89, 1e4]), D)
        gate[0] *= 4
    gate[0, 0] = abs(gate[0, 0])  # a squared ReLU of one negative number is 0
    if activation == "clipped_silu" and T > 2:
        gate[3:] *= 5
        up[1:] *= 5
    inputs = {"gate": narrow(gate, dtype), "up": narrow(up, dtype)}
    wide = {name: widen(array) for name, array in inputs.items()}
    da = da.astype(np.float32)
    sizes = oracles.glu_magnitudes(activation, widen(da), **wide)
    fixed = {"activation": activation}
    check_op(
        kernel(isa, "glu", **fixed),
        kernel(REFERENCE, "glu", **fixed),
        inputs,
        {"out": Output((T, D), stored)},
        {"out": Bound("glu", sizes["out"])},
    )
    check_op(
        kernel(isa, "glu_backward", **fixed),
        kernel(REFERENCE, "glu_backward", **fixed),
        {"da": da, **inputs},
        {name: Output((T, D), stored) for name in ("dgate", "dup", "a")},
        {"dgate": Bound("glu", sizes["dgate"]), "dup": Bound("glu", sizes["dup"]), "a": Bound("glu", sizes["out"])},
    )


@isas
@sweep(activations)
def test_gates_beyond_all_measure(isa: str, activation: str) -> None:
    """With the largest numbers and NaN, results that are finite in the limit are finite, and others are infinite."""
    gate = np.array([[3e38, -3e38, np.nan, 1e20, -1e20]], np.float32)
    one, clipped = np.ones_like(gate), np.float32(7 / (1 + np.exp(-7 * 1.702)))
    out, dgate, dup = (np.full_like(gate, 7) for _ in range(3))
    kernel(isa, "glu", activation=activation)(gate=gate, up=one, out=out)
    kernel(isa, "glu_backward", activation=activation)(da=one, gate=gate, up=one, dgate=dgate, dup=dup)
    with np.errstate(over="ignore"):
        value, slope = {"relu2": (gate**2, 2 * gate), "clipped_silu": (0 * gate + clipped, 0 * gate)}.get(
            activation, (gate, one)
        )
    doubled = 2 * value if activation == "clipped_silu" else value  # whose factor is up + 1
    for result, right in ((out, doubled), (dup, value), (dgate, slope)):
        assert np.isnan(result[0, 2])
        np.testing.assert_allclose(
            result[0, [0, 3]], right[0, [0, 3]], rtol=1e-6 if activation == "clipped_silu" else 0
        )
    assert (np.abs(out[0, [1, 4]]) <= 10).all()
    assert np.isfinite(dgate[0, [1, 4]]).all()


# --- Columns ------------------------------------------------------------------------------------------------


def of_columns(rng: np.random.Generator, D: int, dtype: str = "f32") -> dict[str, Array]:
    """Numbers for columns; some of those divided by are zero."""
    over = rng.uniform(0.5, 2, D)
    over[D // 2 :: 5] = 0 if D > 1 else 1
    return {"bias": random(rng, D), "less": random(rng, D), "over": over.astype(np.float32)}


def reference_dots(*, out: Array, **arrays: Array) -> None:
    """The reference, whose `out` is float32 like that of every set."""
    found = out.astype(np.float32)
    kernel(REFERENCE, "column_dots")(out=found, **arrays)
    out[...] = found


@sweep(pytest.mark.parametrize("accumulate", [False, True]), shapes)
def test_reference_columns(rng: np.random.Generator, T: int, D: int, accumulate: bool) -> None:
    """Compare with NumPy, with and without the optional arguments."""
    x, y, start = (rng.standard_normal((T, D)) for _ in range(3))
    numbers, factors = of_columns(rng, D), random(rng, D)
    scale, dots = kernel(REFERENCE, "scale_columns", accumulate=accumulate), kernel(REFERENCE, "column_dots")
    for given in (factors, None):
        for bias in (numbers["bias"], None):
            out = start.copy()
            scale(x=x, factors=given, out=out, bias=bias)
            wanted = x * (1 if given is None else given) + (0 if bias is None else bias) + accumulate * start
            np.testing.assert_allclose(out, wanted, rtol=1e-12, atol=1e-12)
    less, over = numbers["less"], numbers["over"]
    found = np.ones(D, np.float32)
    dots(x=x, y=y, out=found, less=less, over=over)
    share = np.divide(1, over, out=np.zeros(D), where=over != 0)
    np.testing.assert_allclose(found, 1 + np.einsum("td,td->d", x, y - less) * share, rtol=1e-6, atol=1e-6)
    assert (found[over == 0] == 1).all()
    found = np.zeros(D, np.float32)
    dots(x=x, y=y, out=found)
    np.testing.assert_allclose(found, np.einsum("td,td->d", x, y), rtol=1e-6, atol=1e-6)


@isas
@sweep(dtypes, pytest.mark.parametrize("stored", ["f32", "bf16", "added", "in place"]), shapes)
def test_scale_columns(rng: np.random.Generator, isa: str, dtype: str, stored: str, T: int, D: int) -> None:
    x, factors, bias = random(rng, T, D, dtype=dtype), random(rng, D), of_columns(rng, D)["bias"]
    size = np.abs(widen(x) * factors) + np.abs(bias)
    if stored == "in place":
        ours, wanted = x.copy(), x.copy()
        for found, chosen in ((ours, isa), (wanted, REFERENCE)):
            kernel(chosen, "scale_columns")(x=found, factors=factors, out=found)
        np.testing.assert_allclose(widen(ours), widen(wanted), rtol=2.0**-7 if dtype == "bf16" else 1e-6)
        return
    added = stored == "added"
    start = rng.standard_normal((T, D)) if added else None
    check_op(
        kernel(isa, "scale_columns", accumulate=added),
        kernel(REFERENCE, "scale_columns", accumulate=added),
        {"x": x, "factors": factors, "bias": bias},
        {"out": Output((T, D), "f32" if added else stored, start)},
        {"out": Bound("elementwise", size if start is None else size + np.abs(start))},
    )


@isas
@sweep(pytest.mark.parametrize("types", [("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16")], ids="-".join), shapes)
def test_column_dots(rng: np.random.Generator, isa: str, types: tuple[str, str], T: int, D: int) -> None:
    x, y = (random(rng, T, D, dtype=dtype) for dtype in types)
    numbers = of_columns(rng, D)
    less, over = numbers["less"], numbers["over"]
    terms = np.abs(widen(x)) * (np.abs(widen(y)) + np.abs(less))
    share = np.divide(1, over, out=np.zeros(D), where=over != 0)
    check_op(
        kernel(isa, "column_dots"),
        reference_dots,
        {"x": x, "y": y, "less": less, "over": over},
        {"out": Output((D,), "f32", np.ones(D))},
        {"out": Bound("elementwise", 1 + terms.sum(axis=0) * share, T)},
    )
