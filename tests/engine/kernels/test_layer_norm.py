"""LayerNorm: against autograd in float64, finite differences, and every instruction set against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.engine.kernels import oracles
from tests.engine.kernels.native import REFERENCE, VECTOR_SETS, kernel
from tests.support.bf16 import narrow, widen
from tests.support.check import Bound, Output, check_gradient, check_op, filling
from tests.support.guard import Guarded
from tests.support.sweep import sweep

from featherback.engine import kernels

Array = NDArray[Any]

SHAPES = [(1, 1), (2, 7), (7, 33), (33, 64), (3, 896), (5, 1531)]
shapes = pytest.mark.parametrize(("T", "D"), SHAPES)
EPS = float(np.float32(1e-5))


def sizes(dn: Array, x: Array, weight: Array, bias: Array) -> tuple[Array, Array]:
    """Magnitudes of n and dx: x and its mean are rounded before they are subtracted."""
    mean = x.mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt(x.var(axis=1, keepdims=True) + EPS)
    unit, g = (np.abs(x) + np.abs(mean)) * rstd, np.abs(dn * weight)
    back = rstd * (g + g.mean(axis=1, keepdims=True) + unit * (g * unit).mean(axis=1, keepdims=True))
    return unit * np.abs(weight) + np.abs(bias), back


@sweep(shapes, pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"]))
def test_reference(rng: np.random.Generator, T: int, D: int, biased: bool) -> None:
    x, dn, start = (rng.standard_normal((T, D)) + 0.5 for _ in range(3))
    weight, bias = narrow(rng.standard_normal((2, D)), "f32")
    weight = weight + np.float32(2)
    given = bias if biased else None

    def forward(x: torch.Tensor) -> dict[str, torch.Tensor]:
        shift = torch.tensor(bias if biased else np.zeros(D), dtype=torch.float64)
        return {"out": torch.nn.functional.layer_norm(x, (D,), torch.tensor(weight, dtype=torch.float64), shift, EPS)}

    results, gradients = oracles.autograd(forward, {"x": x}, {"out": dn})
    forward_size, backward_size = sizes(dn, x, weight, bias)
    check_op(
        kernel(REFERENCE, "layer_norm", eps=EPS, bias=given),
        filling(lambda x: results),
        {"x": x, "weight": weight},
        {"out": Output((T, D), "f64")},
        {"out": Bound("rms_norm", forward_size, D)},
        compute="f64",
        vanishing=("out",) if D == 1 and not biased else (),
    )
    for accumulate in (False, True):
        check_op(
            kernel(REFERENCE, "layer_norm_backward", eps=EPS, accumulate=accumulate),
            filling(lambda x: {"dx": gradients["x"]}, accumulate),
            {"dn": dn, "x": x, "weight": weight},
            {"dx": Output((T, D), "f64", start if accumulate else None)},
            {"dx": Bound("rms_norm_backward", backward_size + 4 * accumulate, D)},
            compute="f64",
            vanishing=("dx",) if D == 1 else (),  # one column is always its own mean
        )

    def value(x: Array) -> float:
        out = np.full_like(x, np.nan)
        kernel(REFERENCE, "layer_norm", eps=EPS, weight=weight, bias=bias)(x=x, out=out)
        return float(np.sum(dn * out))

    if D > 1:
        dx = np.zeros_like(x)
        kernel(REFERENCE, "layer_norm_backward", eps=EPS, weight=weight)(dn=dn, x=x, dx=dx)
        check_gradient(value, {"x": x}, {"x": dx}, rng, step=1e-4)


@pytest.mark.parametrize("isa", VECTOR_SETS)
def test_every_instruction_set(rng: np.random.Generator, isa: str) -> None:
    for T, D in SHAPES:
        for dtype in ("f32", "bf16"):
            x, dn = narrow(rng.standard_normal((T, D)) + 0.5, dtype), narrow(rng.standard_normal((T, D)), "f32")
            if T > 2:
                x[1] = 0  # a row without variance: eps alone keeps it finite
                x[2] = narrow(1e3 * widen(x[2]), dtype)
            weight, bias = narrow(rng.standard_normal((2, D)) + 2, "f32")
            forward, backward = sizes(widen(dn), widen(x), weight, bias)
            for stored in ("f32", "bf16"):
                for given in (bias, None):
                    check_op(
                        kernel(isa, "layer_norm", eps=EPS, bias=given),
                        kernel(REFERENCE, "layer_norm", eps=EPS, bias=given),
                        {"x": x, "weight": weight},
                        {"out": Output((T, D), stored)},
                        {"out": Bound("rms_norm", forward, D)},
                        vanishing=("out",) if D == 1 else (),
                    )
            start = rng.standard_normal((T, D))
            for added, stored in ((True, "f32"), (False, "f32"), (False, "bf16")):
                check_op(
                    kernel(isa, "layer_norm_backward", eps=EPS, accumulate=added),
                    kernel(REFERENCE, "layer_norm_backward", eps=EPS, accumulate=added),
                    {"dn": dn, "x": x, "weight": weight},
                    {"dx": Output((T, D), stored, start if added else None)},
                    {"dx": Bound("rms_norm_backward", backward + added * np.abs(start), D)},
                    vanishing=("dx",) if D == 1 else (),
                )


@pytest.mark.parametrize("isa", kernels.available())
@sweep(shapes)
def test_in_place(rng: np.random.Generator, isa: str, T: int, D: int) -> None:
    """out may be x, and dx may be dn: the results are bit-identical."""
    x, dn = narrow(rng.standard_normal((2, T, D)), "f32")
    weight, bias = narrow(rng.standard_normal((2, D)), "f32")
    forward = kernel(isa, "layer_norm", eps=EPS, weight=weight, bias=bias)
    backward = kernel(isa, "layer_norm_backward", eps=EPS, weight=weight, accumulate=False)
    apart, within = np.full_like(x, np.nan), Guarded.holding(x)
    forward(x=x, out=apart)
    forward(x=within.view, out=within.view)
    np.testing.assert_array_equal(within.view, apart)
    apart, within = np.full_like(x, np.nan), Guarded.holding(dn)
    backward(dn=dn, x=x, dx=apart)
    backward(dn=within.view, x=x, dx=within.view)
    np.testing.assert_array_equal(within.view, apart)
    assert within.surroundings_intact()
