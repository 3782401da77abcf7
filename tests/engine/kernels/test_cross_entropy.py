"""Cross-entropy fused with the head: loss and d_hidden in one pass over vocabulary tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.kernels import oracles
from tests.engine.kernels.native import REFERENCE, VECTOR_SETS, Stored, kernel, stored
from tests.support.bf16 import widen
from tests.support.check import NUMPY, Bound, Output, check_gradient, check_op, filling
from tests.support.guard import Guarded
from tests.support.sweep import sweep

from featherback.engine import kernels

Array = NDArray[Any]
SCALE = 0.375  # 1 / tokens, as it were; exact in float32
SETS = kernels.available()

# Kinds of logits: ordinary, spread, hostile, and in orders that make the running maximum move.
KINDS = ["ordinary", "spread", "extreme", "rising", "falling", "constant", "sure", "hopeless"]


def make_logits(rng: np.random.Generator, kind: str, targets: Array, V: int) -> NDArray[np.float32]:
    n = len(targets)
    logits = rng.standard_normal((n, V))
    if kind == "spread":
        logits *= 15
    elif kind == "extreme":
        logits = rng.choice([-1e4, 1e4, 0], (n, V)) + logits
    elif kind in ("rising", "falling"):
        ramp = np.linspace(-200, 200, V)
        logits += ramp if kind == "rising" else -ramp
    elif kind == "constant":
        logits[...] = 3
    elif kind == "sure":
        logits[np.arange(n), targets] += np.linspace(5, 60, n)
    elif kind == "hopeless":
        logits[np.arange(n), targets] -= 1e4
    return logits.astype(np.float32)


def fused(
    isa: str,
    head: Stored,
    targets: Array,
    tile: int,
    dtype: str,
    logits: Array,
    loss: Array,
    dh: Array,
    softcap: float = 0,
) -> None:
    """Compute loss and d_hidden as training does, tile by tile. `dh` must be zero before."""
    n, V = logits.shape
    reference, total, target_logit = (np.full(n, x, np.float32) for x in (-np.inf, 0, np.nan))
    state: dict[str, Array] = {"reference": reference, "sum": total, "target_logit": target_logit}
    for first in range(0, V, tile):
        end = min(V, first + tile)
        p = Guarded((n, end - first), NUMPY[dtype])
        kernel(isa, "cross_entropy_tile", softcap=softcap)(
            logits=logits[:, first:end], first=first, targets=targets, **state, p=p.view, dh=dh
        )
        assert p.surroundings_intact()
        wide = widen(p.view)
        assert ((wide >= 0) & (wide < np.inf)).all()
        here = (targets >= first) & (targets < end)
        assert (wide[here, targets[here] - first] == 0).all(), "p must be 0 at the target"
        matrix = head.slice((first, end), None)[0]
        kernel(isa, "linear_backward")(dy=p.view, w=matrix, dx=dh, accumulate=True)
    rows = np.full((n, dh.shape[1]), np.nan, np.float32)
    kernel(isa, "gather_rows")(w=head.matrix, ids=targets, out=rows)
    kernel(isa, "cross_entropy_finish", softcap=softcap)(**state, loss=loss, target_rows=rows, dh=dh, scale=SCALE)


def oracle(head: Stored, targets: Array, softcap: float = 0) -> Any:
    def run(logits: Array) -> dict[str, Array]:
        ones = np.ones(len(targets))
        results, gradients = oracles.autograd(
            oracles.cross_entropy(targets, softcap), {"logits": logits}, {"loss": ones}
        )
        return {"loss": results["loss"], "dh": SCALE * gradients["logits"] @ head.values}

    return run


def bounds(logits: Array, targets: Array, head: Stored, softcap: float = 0) -> dict[str, Bound]:
    """A term of dh meets the rounding of its logit - reference; the reference may lie below the maximum."""
    wide = logits.astype(np.float64)
    slope: Array | float = 1.0
    if softcap:  # which is a difference from one
        wide = softcap * np.tanh(wide / softcap)
        slope = 1 - (wide / softcap) ** 2 + 0.1
    n, V = wide.shape
    gap = wide.max(1, keepdims=True) - wide
    p = np.exp(-gap) / np.exp(-gap).sum(1, keepdims=True)
    terms = p * (1 + gap)
    terms[np.arange(n), targets] = 1 - p[np.arange(n), targets]
    terms, p = terms * slope, p * slope
    p[np.arange(n), targets] = 0
    loss = np.abs(gap[np.arange(n), targets]) + np.log(V)
    return {
        "loss": Bound("cross_entropy", 1 + loss, V),
        "dh": Bound(
            "cross_entropy_gradient",
            SCALE * 4 * terms @ np.abs(head.values) + 1e-6,
            V,
            SCALE * np.sqrt(p**2 @ head.values**2),
        ),
    }


SHAPES = [(1, 5, 1, 3), (2, 257, 64, 33), (7, 1000, 128, 100), (33, 300, 7, 64), (3, 130, 4096, 31), (130, 70, 32, 8)]
shapes = pytest.mark.parametrize(("n", "V", "tile", "D"), SHAPES)


def check_fused(
    rng: np.random.Generator, isa: str, kind: str, n: int, V: int, tile: int, D: int, dtype: str, softcap: float = 0
) -> None:
    head = stored(rng, "BF16" if dtype == "bf16" else "F32", V, D)
    targets = rng.integers(0, V, n).astype(np.int32)
    targets[0], targets[-1] = 0, V - 1
    targets[n // 2] = V // 2
    logits = make_logits(rng, kind, targets, V)

    def run(**arrays: Array) -> None:
        fused(isa, head, targets, tile, dtype, **arrays, softcap=softcap)

    check_op(
        run,
        filling(oracle(head, targets, softcap)),
        {"logits": logits},
        {"loss": Output((n,)), "dh": Output((n, D), "f32", np.zeros((n, D)))},
        bounds(logits, targets, head, softcap),
        compute=dtype,
        vanishing=("loss", "dh") if n == 1 else (),  # one row may well be sure of its target
    )


@pytest.mark.parametrize("isa", SETS)
@sweep(pytest.mark.parametrize("kind", KINDS), shapes)
def test_fused_fp32(rng: np.random.Generator, isa: str, kind: str, n: int, V: int, tile: int, D: int) -> None:
    check_fused(rng, isa, kind, n, V, tile, D, "f32")


@pytest.mark.parametrize("isa", SETS)
@sweep(pytest.mark.parametrize("kind", KINDS))
def test_fused_bf16(rng: np.random.Generator, isa: str, kind: str) -> None:
    check_fused(rng, isa, kind, 9, 515, 100, 65, "bf16")


@pytest.mark.parametrize("isa", SETS)
@sweep(
    pytest.mark.parametrize("kind", ["ordinary", "spread", "rising", "constant", "sure"]),
    pytest.mark.parametrize("softcap", [2.0, 30.0]),
    pytest.mark.parametrize("dtype", ["f32", "bf16"]),
)
def test_capped_logits(rng: np.random.Generator, isa: str, kind: str, softcap: float, dtype: str) -> None:
    check_fused(rng, isa, kind, 9, 515, 100, 65, dtype, softcap)


@pytest.mark.parametrize("isa", SETS)
def test_loss_alone(rng: np.random.Generator, isa: str) -> None:
    """Evaluation: no p, no dh."""
    V, n = 203, 5
    targets = rng.integers(0, V, n).astype(np.int32)
    logits = make_logits(rng, "spread", targets, V)
    state = {name: np.full(n, x, np.float32) for name, x in
             {"reference": -np.inf, "sum": 0, "target_logit": np.nan}.items()}  # fmt: skip
    for first in range(0, V, 50):
        kernel(isa, "cross_entropy_tile")(logits=logits[:, first : first + 50], first=first, targets=targets, **state)
    loss = Guarded((n,), np.float32)
    kernel(isa, "cross_entropy_finish")(**state, loss=loss.view)
    expected = oracles.autograd(oracles.cross_entropy(targets), {"logits": logits}, {"loss": np.ones(n)})[0]["loss"]
    np.testing.assert_allclose(loss.view, expected, rtol=1e-6, atol=1e-6)
    assert loss.surroundings_intact()


@pytest.mark.parametrize("isa", SETS)
def test_a_vocabulary_of_one(isa: str) -> None:
    """Nothing to learn: loss 0, gradient 0, no NaN."""
    state = {name: np.full(2, x, np.float32) for name, x in
             {"reference": -np.inf, "sum": 0, "target_logit": np.nan}.items()}  # fmt: skip
    logits, targets = np.array([[5], [-1e4]], np.float32), np.zeros(2, np.int32)
    dh, loss, rows = np.zeros((2, 3), np.float32), np.full(2, np.nan, np.float32), np.ones((2, 3), np.float32)
    p = np.full((2, 1), np.nan, np.float32)
    kernel(isa, "cross_entropy_tile")(logits=logits, first=0, targets=targets, **state, p=p, dh=dh)
    kernel(isa, "cross_entropy_finish")(**state, loss=loss, target_rows=rows, dh=dh)
    assert not any(array.any() for array in (p, loss, dh))


@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_reference_by_finite_differences(rng: np.random.Generator, softcap: float) -> None:
    """Compare dh with finite differences of the loss in the hidden state.

    The running state is float32, so the loss carries roundings of some 1e-7: a large step (the formula's
    truncation error is still below 1e-5 of the slope) and a tolerance of 1e-7 / step * a few.
    """
    n, V, D, tile = 4, 37, 6, 10
    head = stored(rng, "F32", V, D)
    targets = rng.integers(0, V, n).astype(np.int32)
    hidden = rng.standard_normal((n, D))

    def run(hidden: Array) -> tuple[Array, Array]:
        loss, dh = np.full(n, np.nan, np.float32), np.zeros((n, D))
        fused(REFERENCE, head, targets, tile, "f64", hidden @ head.values.T, loss, dh, softcap)
        return loss, dh

    check_gradient(
        lambda hidden: SCALE * float(run(hidden)[0].astype(np.float64).sum()),
        {"hidden": hidden},
        {"hidden": run(hidden)[1]},
        rng,
        step=0.05,
        tolerance=3e-5,
    )


@pytest.mark.parametrize("isa", VECTOR_SETS)
def test_the_tile_size_does_not_matter(rng: np.random.Generator, isa: str) -> None:
    """The loss is the same for all tilings, except for rounding."""
    V, n = 500, 6
    head = stored(rng, "F32", V, 16)
    targets = rng.integers(0, V, n).astype(np.int32)
    logits = make_logits(rng, "spread", targets, V)
    results = []
    for tile in (1, 17, 256, 500):
        loss, dh = np.full(n, np.nan, np.float32), np.zeros((n, 16), np.float32)
        fused(isa, head, targets, tile, "f32", logits, loss, dh)
        results.append((loss, dh))
    for loss, dh in results[1:]:
        np.testing.assert_allclose(loss, results[0][0], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(dh, results[0][1], rtol=1e-4, atol=1e-6)
