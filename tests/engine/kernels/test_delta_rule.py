"""The gated delta rule over packed sequences, forward and backward, with states that come in and go out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.kernels import oracles
from tests.engine.kernels.native import REFERENCE, VECTOR_SETS, using
from tests.support.check import check_gradient
from tests.support.guard import Guarded
from tests.support.sweep import sweep

from featherback.engine import kernels

Array = NDArray[Any]
INPUTS = ("q", "k", "v", "decay", "beta", "before")
GRADIENTS = ("dq", "dk", "dv", "ddecay", "dbeta", "dbefore")


@dataclass(frozen=True)
class Case:
    lengths: tuple[int, ...]
    k_heads: int = 2
    v_heads: int = 4
    k_dim: int = 8
    v_dim: int = 12
    tiled: bool = True
    decay: float = 1.0  # the strongest, of e^-decay

    @property
    def cu(self) -> NDArray[np.int32]:
        return np.cumsum([0, *self.lengths], dtype=np.int32)

    @property
    def heads(self) -> dict[str, Any]:
        return {"k_heads": self.k_heads, "v_heads": self.v_heads, "tiled": self.tiled, "cu": self.cu}

    def inputs(self, rng: np.random.Generator) -> dict[str, Array]:
        rows = sum(self.lengths)
        drawn = {
            "q": rng.standard_normal((rows, self.k_heads, self.k_dim)),
            "k": rng.standard_normal((rows, self.k_heads, self.k_dim)),
            "v": rng.standard_normal((rows, self.v_heads * self.v_dim)),
            "decay": -self.decay * rng.random((rows, self.v_heads)) ** 2,
            "beta": rng.random((rows, self.v_heads)),
            "before": rng.standard_normal((self.v_heads, self.k_dim * self.v_dim)),
        }
        drawn["k"] /= np.linalg.norm(drawn["k"], axis=2, keepdims=True)  # as models do: else states may explode
        return {name: values.reshape(len(values), -1).astype(np.float32) for name, values in drawn.items()}


CASES = [
    Case((5,)),
    Case((1,), tiled=False),
    Case((33,), 1, 1, 16, 16),
    Case((31, 1, 2, 70), 2, 6, 5, 7, tiled=False),
    Case((31, 1, 2, 70), 2, 6, 5, 7),
    Case((64, 0, 65), 3, 3, 24, 40),
    Case((40, 100), 1, 2, 128, 128),
    Case((100,), decay=60.0),
    Case((100,), decay=0.0),
]


def forward(inputs: dict[str, Array], case: Case, dtype: type = np.float32) -> dict[str, Array]:
    y, after = np.full_like(inputs["v"], np.nan, dtype), np.full_like(inputs["before"], np.nan, dtype)
    kernels.delta_rule(*(inputs[name] for name in INPUTS[:5]), y, **case.heads, before=inputs["before"], after=after)
    return {"y": y, "after": after}


def backward(inputs: dict[str, Array], outward: dict[str, Array], case: Case) -> dict[str, Array]:
    found = {f"d{name}": Guarded(inputs[name].shape, inputs[name].dtype.type) for name in INPUTS}
    views = {name: guarded.view for name, guarded in found.items()}
    kernels.delta_rule_backward(
        outward["y"], *(inputs[name] for name in INPUTS[:5]), *(views[name] for name in GRADIENTS[:5]),
        **case.heads, before=inputs["before"], dafter=outward["after"], dbefore=views["dbefore"],
    )  # fmt: skip
    assert all(guarded.surroundings_intact() for guarded in found.values())
    return {name: np.array(view) for name, view in views.items()}


def outward_of(case: Case, inputs: dict[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    shapes = {"y": inputs["v"].shape, "after": inputs["before"].shape}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def wide(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def assert_near(found: dict[str, Array], truth: dict[str, Array], bound: float) -> None:
    for name, expected in truth.items():
        assert np.isfinite(found[name]).all(), name
        size = np.linalg.norm(expected)
        assert np.linalg.norm(found[name] - expected) <= bound * size, name


@sweep(pytest.mark.parametrize("case", CASES, ids=str))
def test_reference(rng: np.random.Generator, case: Case) -> None:
    """In float64: as autograd through the recurrence, and as finite differences."""
    inputs = wide(case.inputs(rng))
    outward = wide(outward_of(case, inputs, rng))
    oracle = oracles.delta_rule(case.cu, case.k_heads, case.v_heads, case.tiled)
    results, gradients = oracles.autograd(oracle, inputs, outward)
    with using(REFERENCE):
        assert_near(forward(inputs, case, np.float64), results, 1e-12)
        found = backward(inputs, outward, case)
        assert_near(found, {f"d{name}": gradient for name, gradient in gradients.items()}, 1e-11)
        if sum(case.lengths) > 40:
            return

        def value(**arrays: Array) -> float:
            found = forward(arrays, case, np.float64)
            return float(sum((outward[name] * found[name]).sum() for name in outward))

        sizes = {name: found[f"d{name}"] for name in INPUTS if np.any(found[f"d{name}"])}
        check_gradient(value, inputs, sizes, rng, tolerance=1e-7)


@pytest.mark.parametrize("isa", VECTOR_SETS)
@sweep(pytest.mark.parametrize("case", CASES, ids=str))
def test_delta_rule(rng: np.random.Generator, isa: str, case: Case) -> None:
    inputs = case.inputs(rng)
    outward = outward_of(case, inputs, rng)
    with using(REFERENCE):
        results = forward(wide(inputs), case, np.float64)
        gradients = backward(wide(inputs), wide(outward), case)
    with using(isa):
        assert_near(forward(inputs, case), results, 2e-6)
        found = backward(inputs, outward, case)
    for name, expected in gradients.items():
        # of a decay to e^-60 hardly anything is left, so that a state's rounding is all there is of its gradient
        loose = np.linalg.norm(expected) + (1e-2 if name == "ddecay" and case.decay > 10 else 0)
        assert np.linalg.norm(found[name] - expected) <= 5e-6 * loose, name


@pytest.mark.parametrize("cut", [1, 31, 32, 50])
@pytest.mark.parametrize("isa", [REFERENCE, *VECTOR_SETS])
def test_in_two_calls(rng: np.random.Generator, isa: str, cut: int) -> None:
    """States go from one call to the next, and their gradients back, in place."""
    case = Case((83,), k_dim=9, v_dim=18)
    inputs = case.inputs(rng)
    outward = outward_of(case, inputs, rng)
    parts = [
        ({**inputs, **{name: inputs[name][rows] for name in INPUTS[:5]}}, outward["y"][rows])
        for rows in (slice(0, cut), slice(cut, 83))
    ]
    cases = [Case((cut,), k_dim=9, v_dim=18), Case((83 - cut,), k_dim=9, v_dim=18)]
    with using(isa):
        whole, gradients = forward(inputs, case), backward(inputs, outward, case)
        state, out = inputs["before"].copy(), []
        starts = []
        for (part, _), each in zip(parts, cases):
            y = np.empty_like(part["v"])
            starts.append(state.copy())
            kernels.delta_rule(*(part[n] for n in INPUTS[:5]), y, **each.heads, before=state, after=state)
            out.append(y)
        back, dstate = [], outward["after"].copy()
        for (part, dy), each, start in list(zip(parts, cases, starts))[::-1]:
            found = backward({**part, "before": start}, {"y": dy, "after": dstate}, each)
            dstate = found["dbefore"]
            back.append(found)
    assert_near({"y": np.concatenate(out), "after": state}, whole, 2e-6)
    joined = {name: np.concatenate([each[name] for each in back[::-1]]) for name in GRADIENTS[:5]}
    assert_near({**joined, "dbefore": dstate}, gradients, 5e-6)


@pytest.mark.parametrize("isa", VECTOR_SETS)
def test_without_states(rng: np.random.Generator, isa: str) -> None:
    """No state before is a state of zeros; a gradient that nobody asks for is not written."""
    case = Case((40, 7))
    inputs = {**case.inputs(rng), "before": np.zeros((4, 96), np.float32)}
    outward = outward_of(case, inputs, rng) | {"after": np.zeros((4, 96), np.float32)}
    with using(isa):
        whole, gradients = forward(inputs, case), backward(inputs, outward, case)
        y, after = np.empty_like(whole["y"]), np.empty_like(whole["after"])
        given = [inputs[name] for name in INPUTS[:5]]
        kernels.delta_rule(*given, y, **case.heads)
        kernels.delta_rule(*given, None, **case.heads, after=after)
        found = {name: np.empty_like(gradients[name]) for name in GRADIENTS[:5]}
        kernels.delta_rule_backward(outward["y"], *given, *found.values(), **case.heads)
    np.testing.assert_array_equal(y, whole["y"])
    np.testing.assert_array_equal(after, whole["after"])
    for name, gradient in found.items():
        np.testing.assert_array_equal(gradient, gradients[name])


@pytest.mark.parametrize("isa", VECTOR_SETS)
@pytest.mark.parametrize("lengths", [(1,), (70, 3), (300,)])
def test_costs(rng: np.random.Generator, isa: str, lengths: tuple[int, ...]) -> None:
    case = Case(lengths, 2, 6, 24, 40)
    inputs = case.inputs(rng)
    outward = outward_of(case, inputs, rng)
    shape = case.cu, case.k_heads, case.v_heads, case.k_dim, case.v_dim
    products = 2 * sum(lengths) * case.v_heads * case.k_dim * case.v_dim
    with using(isa):
        for cost, count, call in (
            (kernels.delta_rule_cost, 3, lambda: forward(inputs, case)),
            (kernels.delta_rule_backward_cost, 8, lambda: backward(inputs, outward, case)),
        ):
            kernels.scratch_peak()
            call()
            assert cost(*shape) == (count * products, kernels.scratch_peak())


WRONG = {
    "cu ends early": {"cu": np.array([0, 4], np.int32)},
    "cu falls": {"cu": np.array([0, 6, 5], np.int32)},
    "heads that do not divide": {"v_heads": 3},
    "no heads": {"k_heads": 0},
    "more heads than columns": {"k_heads": 4, "v_heads": 8},
    "state of another size": {"before": np.zeros((4, 95), np.float32)},
    "bf16": {"q": np.zeros((5, 16), np.uint16)},
    "beta of another width": {"beta": np.zeros((5, 3), np.float32)},
    "k of another length": {"k": np.zeros((4, 16), np.float32)},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused(rng: np.random.Generator, name: str) -> None:
    case = Case((5,))
    arguments = {**case.inputs(rng), **case.heads, "y": np.zeros((5, 48), np.float32)} | WRONG[name]
    with pytest.raises(ValueError, match=r".+"):
        kernels.delta_rule(**arguments)
