"""The optimisers, and the small operations on whole arrays: cast, sum_squares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.engine.kernels.native import REFERENCE, VECTOR_SETS, kernel
from tests.support.bf16 import from_bf16, narrow, to_bf16, widen
from tests.support.check import Bound, Output, check_op
from tests.support.guard import Guarded
from tests.support.sweep import sweep

from featherback.engine import kernels

Array = NDArray[Any]
shapes = pytest.mark.parametrize(("rows", "cols"), [(1, 1), (2, 7), (8, 33), (33, 100), (3, 2053)])
isas = pytest.mark.parametrize("isa", VECTOR_SETS)


def single(x: float) -> float:
    """Round a number to float32, so that PyTorch in float64 computes with the same number."""
    return float(np.float32(x))


ADAMW = {
    "lr": single(1e-2),
    "beta1": single(0.9),
    "beta2": single(0.999),
    "eps": single(1e-8),
    "weight_decay": single(0.1),
}
SGD = {"lr": single(1e-2), "weight_decay": single(0.1), "grad_scale": single(0.3)}


def gradients(rng: np.random.Generator, steps: int, rows: int, cols: int) -> list[Array]:
    """Some of ordinary size, some tiny, some zero."""
    size = rng.choice([1.0, 1e-6, 0.0], (rows, cols), p=[0.8, 0.1, 0.1])
    size[0, 0] = 1
    return [(size * rng.standard_normal((rows, cols))).astype(np.float32) for _ in range(steps)]


def test_reference_adamw(rng: np.random.Generator) -> None:
    start = rng.standard_normal((3, 9))
    steps = gradients(rng, 5, 3, 9)
    ours, m, v = start.copy(), np.zeros_like(start), np.zeros_like(start)
    theirs = torch.tensor(start, requires_grad=True)
    optimiser = torch.optim.AdamW(
        [theirs], ADAMW["lr"], (ADAMW["beta1"], ADAMW["beta2"]), ADAMW["eps"], ADAMW["weight_decay"]
    )
    for step, grad in enumerate(steps, 1):
        kernel(REFERENCE, "adamw", **ADAMW, step=step, grad_scale=0.5)(param=ours, grad=grad, m=m, v=v)
        theirs.grad = torch.tensor(0.5 * grad, dtype=torch.float64)
        optimiser.step()
        # The kernel takes the bias corrections as float32.
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=0, atol=3e-7 * ADAMW["lr"] * step)
    assert np.abs(ours - start).min() > 0


def test_reference_sgd(rng: np.random.Generator) -> None:
    start = rng.standard_normal((3, 9))
    ours, theirs = start.copy(), torch.tensor(start, requires_grad=True)
    optimiser = torch.optim.SGD([theirs], SGD["lr"], weight_decay=SGD["weight_decay"])
    for grad in gradients(rng, 3, 3, 9):
        kernel(REFERENCE, "sgd", **SGD)(param=ours, grad=grad)
        theirs.grad = torch.tensor(SGD["grad_scale"] * grad.astype(np.float64))
        optimiser.step()
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-14, atol=1e-15)


@isas
@sweep(shapes, pytest.mark.parametrize("step", [1, 100]))
def test_adamw(rng: np.random.Generator, isa: str, rows: int, cols: int, step: int) -> None:
    (grad,) = gradients(rng, 1, rows, cols)
    param, m = rng.standard_normal((2, rows, cols)).astype(np.float32)
    v = (rng.standard_normal((rows, cols)) ** 2).astype(np.float32)
    if step == 1:
        m, v = np.zeros_like(m), np.zeros_like(v)
    fixed = {**ADAMW, "step": step, "grad_scale": 0.25}
    g = 0.25 * np.abs(widen(grad))
    size_m, size_v = 0.9 * np.abs(m) + 0.1 * g, 0.999 * v + 0.001 * g * g
    denominator = np.sqrt(size_v / (1 - 0.999**step)) + 1e-8
    size = np.abs(param) + 1e-2 * size_m / (1 - 0.9**step) / denominator
    check_op(
        kernel(isa, "adamw", **fixed),
        kernel(REFERENCE, "adamw", **fixed),
        {"grad": grad},
        {name: Output((rows, cols), "f32", start) for name, start in {"param": param, "m": m, "v": v}.items()},
        {"param": Bound("adamw", size), "m": Bound("adamw", size_m), "v": Bound("adamw", size_v)},
    )


@isas
@sweep(shapes)
def test_sgd(rng: np.random.Generator, isa: str, rows: int, cols: int) -> None:
    (grad,) = gradients(rng, 1, rows, cols)
    param = rng.standard_normal((rows, cols)).astype(np.float32)
    size = np.abs(param) + 1e-2 * np.abs(grad)
    check_op(
        kernel(isa, "sgd", **SGD),
        kernel(REFERENCE, "sgd", **SGD),
        {"grad": grad},
        {"param": Output((rows, cols), "f32", param)},
        {"param": Bound("sgd", size)},
    )


@pytest.mark.parametrize("isa", kernels.available())
@sweep(pytest.mark.parametrize("source", ["f32", "bf16"]), pytest.mark.parametrize("target", ["f32", "bf16"]), shapes)
def test_cast(rng: np.random.Generator, isa: str, source: str, target: str, rows: int, cols: int) -> None:
    """Casts are exact: to bf16 by rounding to nearest even, and from bf16 to float32 without change."""
    x = Guarded.holding(narrow(rng.standard_normal((rows, cols)) * 10.0 ** rng.integers(-30, 30, (rows, cols)), source))
    out = Guarded((rows, cols), np.float32 if target == "f32" else np.uint16)
    kernel(isa, "cast")(x=x.view, out=out.view)
    np.testing.assert_array_equal(widen(out.view), widen(narrow(widen(x.view), target)))
    assert out.surroundings_intact()
    assert x.intact()


@pytest.mark.parametrize("isa", kernels.available())
def test_cast_of_every_kind_of_number(isa: str) -> None:
    """Ties, infinities, NaN. Subnormals may become zero, which is what the bf16 instructions do."""
    bits = np.concatenate([
        np.arange(0, 1 << 16, dtype=np.uint32) << 16,  # every bf16
        (np.arange(0, 1 << 16, 7, dtype=np.uint32) << 16) + 0x8000,  # ties
        (np.arange(0, 1 << 16, 7, dtype=np.uint32) << 16) + 0x7FFF,
        (np.arange(0, 1 << 16, 7, dtype=np.uint32) << 16) + 0x8001,
    ])  # fmt: skip
    x = bits.view(np.float32)[None]
    out = np.full(x.shape, 0x7FC1, np.uint16)
    kernel(isa, "cast")(x=x, out=out)
    ours, expected = from_bf16(out), from_bf16(to_bf16(x))
    tiny = np.abs(x) < np.finfo(np.float32).tiny
    np.testing.assert_array_equal(ours[~tiny], expected[~tiny])
    assert ((ours[tiny] == expected[tiny]) | (ours[tiny] == 0)).all()


@pytest.mark.parametrize("isa", kernels.available())
@sweep(shapes)
def test_sum_squares(rng: np.random.Generator, isa: str, rows: int, cols: int) -> None:
    x = Guarded.holding(rng.standard_normal((rows, cols)).astype(np.float32))
    expected = float(np.sum(widen(x.view) ** 2))
    assert abs(kernel(isa, "sum_squares")(x=x.view) - expected) <= 2.0**-24 * 16 * expected
