"""The gated recurrence and its gradient against autograd in float64, and rows in 8-bit steps to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.engine.kernels.native import REFERENCE, VECTOR_SETS, kernel
from tests.support.bf16 import from_bf16, to_bf16
from tests.support.guard import Guarded
from tests.support.sweep import sweep

from featherback.engine import kernels

Array = NDArray[Any]
SHAPES = [(1, 1), (2, 7), (7, 33), (33, 64), (257, 100), (5, 1531)]
shapes = pytest.mark.parametrize(("T", "D"), SHAPES)
isas = pytest.mark.parametrize("isa", [REFERENCE, *VECTOR_SETS])
RELATIVE = 1e-5


def recurrence(i: Array, f: Array, bound: Array, before: Array) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Leaves and h (T, D), in float64, as the paper writes it: silu(i_t), and a forget gate with a lower bound."""
    leaves = {
        name: torch.tensor(x, dtype=torch.float64, requires_grad=True)
        for name, x in {"i": i, "f": f, "before": before}.items()
    }
    low, h, rows = torch.tensor(bound, dtype=torch.float64), leaves["before"], []
    forget = low + (1 - low) * torch.sigmoid(leaves["f"])
    for t in range(len(i)):
        h = forget[t] * h + (1 - forget[t]) * torch.nn.functional.silu(leaves["i"][t])
        rows.append(h)
    return leaves, torch.stack(rows)


def drawn(rng: np.random.Generator, T: int, D: int) -> dict[str, Array]:
    arrays = {name: rng.standard_normal((T, D)) * 3 for name in ("i", "f", "dh")}
    arrays |= {"bound": rng.random(D), "before": rng.standard_normal(D), "carry": rng.standard_normal(D)}
    arrays["bound"][0] = 0
    return {name: values.astype(np.float32) for name, values in arrays.items()}


def assert_close(found: Array, expected: Any, relative: float = RELATIVE) -> None:
    truth = np.asarray(expected, np.float64)
    assert np.isfinite(truth).all()
    assert np.linalg.norm(truth) > 0
    assert np.linalg.norm(found - truth) <= relative * np.linalg.norm(truth)


@isas
@sweep(shapes, pytest.mark.parametrize("dtype", [np.float32, np.uint16], ids=["f32", "bf16"]))
def test_gated_recurrence(rng: np.random.Generator, isa: str, T: int, D: int, dtype: type) -> None:
    x = drawn(rng, T, D)
    leaves, rows = recurrence(x["i"], x["f"], x["bound"], x["before"])
    h, state = Guarded((T, D), np.float32), Guarded.holding(x["before"])
    kernel(isa, "gated_recurrence")(i=x["i"], f=x["f"], bound=x["bound"], state=state.view, h=h.view)
    assert_close(h.view, rows.detach())
    np.testing.assert_array_equal(state.view, h.view[-1])
    # The gradient of sum(dh h) + carry h_last
    (rows * torch.tensor(x["dh"])).sum().backward(retain_graph=True)
    (rows[-1] * torch.tensor(x["carry"])).sum().backward()
    carry, di, df = Guarded.holding(x["carry"]), Guarded((T, D), dtype), Guarded((T, D), dtype)
    given = {name: x[name] for name in ("dh", "i", "f", "bound", "before")}
    kernel(isa, "gated_recurrence_backward")(**given, h=h.view, carry=carry.view, di=di.view, df=df.view)
    bound = RELATIVE if dtype is np.float32 else 2.0**-8
    for name, found in {"i": di, "f": df}.items():
        values = found.view if dtype is np.float32 else from_bf16(found.view)
        assert_close(values, leaves[name].grad, bound)
    assert_close(carry.view, leaves["before"].grad)
    assert all(each.surroundings_intact() for each in (h, state, carry, di, df))


@isas
def test_a_recurrence_in_parts_has_the_same_bits(rng: np.random.Generator, isa: str) -> None:
    x, whole = drawn(rng, 29, 70), np.empty((29, 70), np.float32)
    state, part = x["before"].copy(), np.empty_like(whole)
    kernel(isa, "gated_recurrence")(i=x["i"], f=x["f"], bound=x["bound"], state=x["before"].copy(), h=whole)
    for rows in (slice(0, 1), slice(1, 11), slice(11, 29)):
        given = {name: x[name][rows] for name in ("i", "f")}
        kernel(isa, "gated_recurrence")(**given, bound=x["bound"], state=state, h=part[rows])
    tolerance = 1e-6 if isa == REFERENCE else 0  # the reference rounds its state to float32 between parts
    np.testing.assert_allclose(part, whole, rtol=tolerance, atol=tolerance)


def steps(x: Array) -> Array:
    """Rows in 8-bit steps, in float32, as NumPy computes them."""
    scale = np.float32(127) / np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float32(1e-5))
    return np.clip(np.rint(x * scale), -128, 127) / scale + np.float32(0)


@isas
@sweep(shapes)
def test_round_rows(rng: np.random.Generator, isa: str, T: int, D: int) -> None:
    x = (rng.standard_normal((T, D)) * 10.0 ** rng.integers(-8, 3, (T, 1))).astype(np.float32)
    x[0] = 0
    out, narrow, within = Guarded((T, D), np.float32), Guarded((T, D), np.uint16), Guarded.holding(x)
    kernel(isa, "round_rows")(x=x, out=out.view)
    np.testing.assert_array_equal(out.view, steps(x))
    kernel(isa, "round_rows")(x=x, out=narrow.view)
    np.testing.assert_array_equal(narrow.view, to_bf16(steps(x)))
    kernel(isa, "round_rows")(x=within.view, out=within.view)
    np.testing.assert_array_equal(within.view, out.view)
    assert all(each.surroundings_intact() for each in (out, narrow, within))


@isas
@pytest.mark.parametrize("strange", [np.inf, -np.inf, np.nan])
def test_a_row_that_is_not_finite_stays_so(isa: str, strange: float) -> None:
    x, out = np.ones((2, 50), np.float32), np.empty((2, 50), np.float32)
    x[1, 40] = strange
    kernel(isa, "round_rows")(x=x, out=out)
    assert np.isnan(out[1]).all()
    np.testing.assert_array_equal(out[0], 1)


def test_arrays_of_other_shapes_are_refused() -> None:
    x, row = np.ones((3, 8), np.float32), np.ones(8, np.float32)
    with pytest.raises(ValueError, match="f is"):
        kernels.gated_recurrence(x, x[:2], row, row.copy(), x.copy())
    with pytest.raises(ValueError, match="bound has 7"):
        kernels.gated_recurrence(x, x, row[:7], row.copy(), x.copy())
    with pytest.raises(ValueError, match="h must be float32"):
        kernels.gated_recurrence(x, x, row, row.copy(), np.ones((3, 8), np.uint16))
    with pytest.raises(ValueError, match="carry has 4"):
        kernels.gated_recurrence_backward(x, x, x, row, row, x, row[:4].copy(), x.copy(), x.copy())
    with pytest.raises(ValueError, match="df is"):
        kernels.gated_recurrence_backward(x, x, x, row, row, x, row.copy(), x.copy(), x[:1].copy())
    with pytest.raises(ValueError, match="one type"):
        kernels.gated_recurrence_backward(x, x, x, row, row, x, row.copy(), x.copy(), np.ones((3, 8), np.uint16))
    with pytest.raises(ValueError, match="out is"):
        kernels.round_rows(x, x[:2].copy())
