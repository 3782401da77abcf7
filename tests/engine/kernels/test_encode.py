"""8-bit blocks are bit-identical to those that NumPy computes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.kernels.native import REFERENCE, VECTOR_SETS, kernel
from tests.support.bf16 import from_bf16, to_bf16
from tests.support.blocks8 import encoded, quantised, rounded
from tests.support.guard import Guarded
from tests.support.sweep import sweep

from featherback.engine import kernels

SHAPES = [(1, 1), (2, 31), (7, 32), (33, 100), (300, 257), (5, 1536)]


def uneven(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Rows of very different sizes, with zeros and a few numbers that are far larger than the rest."""
    x = rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-12, 3, (rows, 1))
    x *= np.where(rng.random(x.shape) < 0.01, 1000, 1) * (rng.random(x.shape) > 0.1)
    return x.astype(np.float32)


@pytest.mark.parametrize("isa", [REFERENCE, *VECTOR_SETS])
@sweep(pytest.mark.parametrize("dtype", ["f32", "bf16"]), pytest.mark.parametrize(("rows", "columns"), SHAPES))
def test_codes_and_what_is_read_of_them(
    rng: np.random.Generator, isa: str, dtype: str, rows: int, columns: int
) -> None:
    x = uneven(rng, rows, columns)
    given = x if dtype == "f32" else to_bf16(x)
    x = x if dtype == "f32" else from_bf16(given)
    expected = encoded(x)
    codes = Guarded(expected.shape, np.uint8)
    kernel(isa, "encode")(x=Guarded.holding(given).view, codes=codes.view)
    assert codes.surroundings_intact()
    np.testing.assert_array_equal(codes.view, expected)
    found = Guarded((rows, columns), np.float32)
    kernel(isa, "decode")(codes=codes.view, out=found.view)
    assert found.surroundings_intact()
    np.testing.assert_array_equal(found.view, rounded(x))
    narrow = Guarded((rows, columns), np.uint16)
    kernel(isa, "decode")(codes=codes.view, out=narrow.view)
    np.testing.assert_array_equal(narrow.view, to_bf16(rounded(x)))


def test_no_number_is_off_by_more_than_half_a_step(rng: np.random.Generator) -> None:
    """The largest number of a block is not clipped, however its scale is rounded."""
    x = uneven(rng, 200, 320)
    steps = np.repeat(quantised(x)[0].astype(np.float64), 32, axis=1)
    largest = np.repeat(np.abs(x).reshape(200, -1, 32).max(axis=2), 32, axis=1)
    off = np.abs(rounded(x).astype(np.float64) - x)
    assert (off <= steps / 2 * (1 + 1e-6)).all()
    assert (steps <= largest / 127 * (1 + 2.0**-10) + 2.0**-24).all()


@pytest.mark.parametrize("isa", [REFERENCE, *VECTOR_SETS])
@pytest.mark.parametrize("strange", [np.inf, -np.inf, np.nan, 1e8])
def test_what_cannot_be_coded_is_not_finite_when_it_is_read(isa: str, strange: float) -> None:
    x = np.ones((2, 64), np.float32)
    x[1, 40] = strange
    codes, found = np.zeros((2, 68), np.uint8), np.empty((2, 64), np.float32)
    kernel(isa, "encode")(x=x, codes=codes)
    kernel(isa, "decode")(codes=codes, out=found)
    assert np.isnan(found[1, 32:]).all()
    np.testing.assert_allclose(found[0], 1, rtol=2.0**-10)
    np.testing.assert_allclose(found[1, :32], 1, rtol=2.0**-10)


def test_codes_of_another_size_are_refused() -> None:
    x = np.ones((2, 64), np.float32)
    for shape in ((2, 67), (1, 68), (2, 34)):
        with pytest.raises(ValueError, match="codes is"):
            kernels.encode(x, np.zeros(shape, np.uint8))
        with pytest.raises(ValueError, match="codes is"):
            kernels.decode(np.zeros(shape, np.uint8), x)
    with pytest.raises(ValueError, match="contiguous"):
        kernels.encode(x, np.zeros((2, 136), np.uint8)[:, ::2])
