"""Products with x in eight bits equal the definition in core/rounded.h, computed in NumPy with weights from `gguf`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.kernels.native import REFERENCE, TYPES, VECTOR_SETS, kernel, stored, using
from tests.support.bf16 import narrow, widen

from featherback.engine import kernels

Array = NDArray[Any]
BLOCK, LARGEST = 32, np.float32(127)
FEW = 16  # rows that may be rounded

BYTES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
         "TQ1_0", "TQ2_0")  # fmt: skip
isas = pytest.mark.parametrize("isa", [REFERENCE, *VECTOR_SETS])


def rounded(x: Array, block: int = BLOCK) -> Array:
    """x (T, K), each block of its rows in steps of its largest number / 127."""
    out = np.zeros(x.shape)
    for first in range(0, x.shape[1], block):
        part = x[:, first : first + block].astype(np.float32)
        most = np.abs(part).max(axis=1, keepdims=True)
        inverse = np.divide(LARGEST, most, out=np.zeros_like(most), where=most > 2.0**-100)
        out[:, first : first + block] = np.rint(part * inverse) * (most / LARGEST).astype(np.float64)
    return out


def inputs(rng: np.random.Generator, type: str, T: int, dtype: str) -> tuple[Any, Array]:
    """A weight whose blocks fill no whole group, and rows of x with blocks of zeros and of very different sizes."""
    K = 1280 if type.endswith("_K") or type in ("IQ4_XS", "TQ1_0", "TQ2_0") else 32 * (19 if T > 1 else 35)
    sizes = np.repeat(rng.choice([0, 1e-3, 1, 30], (T, K // BLOCK)), BLOCK, axis=1)
    sizes[:, :BLOCK] = sizes[:, -2 * BLOCK :] = 1
    return stored(rng, type, 37, K), narrow((rng.standard_normal((T, K)) * sizes).astype(np.float32), dtype)


def product(isa: str, w: Any, x: Array, **more: Any) -> Array:
    out = more.pop("start", np.full((len(x), w.values.shape[0]), np.nan, np.float32)).copy()
    kernel(isa, "linear", w=w.matrix, rounded=True)(x=x, out=out, **more)
    return out


def distance(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def rows_rounded(isa: str, type: str) -> list[int]:
    with using(isa):
        return [T for T in (1, 2, 3, 5, FEW, FEW + 1) if kernels.rounds(TYPES[type], T)]


@isas
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_products(rng: np.random.Generator, isa: str, dtype: str) -> None:
    for type in BYTES:
        for T in rows_rounded(isa, type):
            w, x = inputs(rng, type, T, dtype)
            expected = rounded(widen(x)) @ w.values.T
            assert distance(product(isa, w, x), expected) < 1e-6, (type, T)
            h, b = narrow(rng.standard_normal((T, 3)), dtype), rng.standard_normal((3, 37)).astype(np.float32)
            bias, start = rng.standard_normal(37).astype(np.float32), rng.standard_normal((T, 37)).astype(np.float32)
            found = product(isa, w, x, h=h, b=b, bias=bias, start=start, accumulate=True)
            assert distance(found, start + bias + widen(h) @ b + expected) < 1e-6, (type, T)


@isas
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_row_has_the_same_bits_beside_others(rng: np.random.Generator, isa: str, dtype: str) -> None:
    """Whatever their number: guesses of the next tokens, or rows of other requests."""
    for type in BYTES:
        with using(isa):
            assert all(kernels.rounds(TYPES[type], T) for T in range(1, FEW + 1))
        w, x = inputs(rng, type, FEW, dtype)
        h, b = narrow(rng.standard_normal((FEW, 3)), dtype), rng.standard_normal((3, 37)).astype(np.float32)
        bias = rng.standard_normal(37).astype(np.float32)

        def of(*rows: int, w: Any = w, x: Array = x, h: Array = h, b: Array = b, bias: Array = bias) -> Array:
            part = slice(*rows)
            return product(isa, w, x[part], h=h[part], b=b, bias=bias)

        single = np.concatenate([of(row, row + 1) for row in range(FEW)])
        for T in (2, 3, 4, 5, 6, 8, 9, 12, FEW):
            np.testing.assert_array_equal(of(0, T), single[:T], err_msg=f"{type}, {T} rows")


@isas
def test_other_products_are_exact(rng: np.random.Generator, isa: str) -> None:
    """A prompt's, and those of types whose levels are no bytes."""
    for type, T in (("Q4_0", FEW + 1), ("Q4_K", FEW + 1), ("F16", 1), ("BF16", 2), ("IQ3_S", 1), ("AFFINE8", 1)):
        w, x = stored(rng, type, 37, 512), rng.standard_normal((T, 512)).astype(np.float32)
        exact = np.full((T, 37), np.nan, np.float32)
        kernel(isa, "linear", w=w.matrix)(x=x, out=exact)
        np.testing.assert_array_equal(product(isa, w, x), exact)
        with using(isa):
            assert not kernels.rounds(TYPES[type], T)


@isas
def test_a_part_of_a_weight(rng: np.random.Generator, isa: str) -> None:
    for type in ("Q4_1", "Q5_0", "Q6_K"):
        w, _ = inputs(rng, type, 1, "f32")
        step = 256 if type == "Q6_K" else 32
        part, values = w.slice((3, 30), (step, 3 * step))
        x = rng.standard_normal((1, 2 * step)).astype(np.float32)
        out = np.full((1, 27), np.nan, np.float32)
        kernel(isa, "linear", w=part, rounded=True)(x=x, out=out)
        assert distance(out, rounded(x) @ values.T) < 1e-6


@isas
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(rng: np.random.Generator, isa: str, wrong: float) -> None:
    for type in BYTES:
        w, x = inputs(rng, type, 1, "f32")
        x[0, 70] = wrong
        assert not np.isfinite(product(isa, w, x)).any(), type


@isas
def test_planted_faults_are_found(rng: np.random.Generator, isa: str) -> None:
    """The comparison fails for every way of rounding but one, and for a weight with a wrong part."""
    for type in BYTES:
        w, x = inputs(rng, type, 1, "f32")
        found, values = product(isa, w, x), w.values
        shifted = values.copy()
        shifted[:, -16:] = values[:, -32:-16]
        faults = {
            "not rounded": x @ values.T,
            "blocks of 256": rounded(x, 256) @ values.T,
            "blocks of 16": rounded(x, 16) @ values.T,
            "towards zero": np.sign(x) * np.minimum(np.abs(x), np.abs(rounded(x))) @ values.T,
            "the last part is another's": rounded(x) @ shifted.T,
            "no last block": rounded(x)[:, :-BLOCK] @ values[:, :-BLOCK].T,
            "opposite signs": -(rounded(x) @ values.T),
        }
        for name, fault in faults.items():
            assert distance(found, fault) > 1e-5, (type, name)


@isas
@pytest.mark.parametrize("threads", [1, 3])
def test_scratch_and_arithmetic(rng: np.random.Generator, isa: str, threads: int) -> None:
    before = kernels.threads()
    try:
        kernels.set_threads(threads)
        for type in BYTES:
            for T in (*rows_rounded(isa, type), FEW + 1):
                w, x = inputs(rng, type, T, "f32")
                kernels.scratch_peak()
                product(isa, w, x)
                taken = kernels.scratch_peak()
                with using(isa):
                    cost = kernels.linear_cost(T, x.shape[1], 37, 0, False, TYPES[type], rounded=True)
                assert cost == (2 * T * x.shape[1] * 37, taken), (type, T)
    finally:
        kernels.set_threads(before)
