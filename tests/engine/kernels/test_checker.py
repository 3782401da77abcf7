"""The checker itself, with planted faults: it must find each of them, and accept the correct operation.

The operations here are plain NumPy in float32, judged against float64; no native code is involved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.bf16 import from_bf16, to_bf16, widen
from tests.support.check import Bound, Output, check_gradient, check_op, filling
from tests.support.sweep import sweep

Array = NDArray[Any]
T = 7  # square, so that transposing a cotangent keeps its shape
SCALE = 2.0


def forward(x: Array, w: Array, bias: Array, a: Array, b: Array) -> dict[str, Array]:
    return {"out": x @ w.T + bias + SCALE * (x @ a.T) @ b}


def backward(dy: Array, w: Array, a: Array, b: Array) -> dict[str, Array]:
    return {"dx": dy @ w + SCALE * (dy @ b.T) @ a}


def attention(q: Array, k: Array, v: Array, ahead: int = 0) -> dict[str, Array]:
    """Causal attention; `ahead` = 1 shows each query the key after its own, the classic slip."""
    scores = np.where(np.tri(len(q), k=ahead, dtype=bool), q @ k.T, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return {"out": p / p.sum(-1, keepdims=True) @ v}


class Case:
    """An operation with inputs, outputs and bounds; `run` checks a stand-in for it."""

    def __init__(self, rng: np.random.Generator, operation: Callable[..., dict[str, Array]], dtype: str = "f32"):
        self.operation = operation
        all_shapes: dict[Any, dict[str, tuple[int, ...]]] = {
            forward: {"x": (T, T), "w": (T, T), "bias": (T,), "a": (3, T), "b": (3, T)},
            backward: {"dy": (T, T), "w": (T, T), "a": (3, T), "b": (3, T)},
            attention: {"q": (T, 8), "k": (T, 8), "v": (T, 8)},
        }
        shapes = all_shapes[operation]
        self.inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        wide = {name: widen(array) for name, array in self.inputs.items()}
        if operation is attention:
            self.magnitude = attention(wide["q"], wide["k"], np.abs(wide["v"]))["out"]
        else:
            self.magnitude = next(iter(operation(**{name: np.abs(array) for name, array in wide.items()}).values()))
        self.name = "dx" if operation is backward else "out"
        self.output = Output(self.magnitude.shape, dtype)

    def run(self, fault: Callable[..., None]) -> None:
        check_op(
            fault,
            filling(self.operation),
            self.inputs,
            {self.name: self.output},
            {self.name: Bound("attention" if self.operation is attention else "linear", self.magnitude, T)},
        )


def sound(operation: Callable[..., dict[str, Array]]) -> Callable[..., None]:
    def run(**arrays: Array) -> None:
        for name in ("out", "dx"):
            if name in arrays:
                target = arrays.pop(name)
                result = operation(**arrays)[name]
                target[...] = to_bf16(result) if target.dtype == np.uint16 else result

    return run


def altered(
    operation: Callable[..., dict[str, Array]], name: str, change: Callable[[Array], Array]
) -> Callable[..., None]:
    """The correct operation on a changed input."""

    def run(**arrays: Array) -> None:
        sound(operation)(**{**arrays, name: change(arrays[name])})

    return run


def spoiled(operation: Callable[..., dict[str, Array]], change: Callable[[Array], None]) -> Callable[..., None]:
    """The correct operation, with a changed output."""

    def run(**arrays: Array) -> None:
        sound(operation)(**arrays)
        change(arrays["dx" if operation is backward else "out"])

    return run


def negate(x: Array) -> None:
    x *= -1


def put(value: float) -> Callable[[Array], None]:
    def change(x: Array) -> None:
        x[-1, -1] = value

    return change


def fill(value: float) -> Callable[[Array], None]:
    def change(x: Array) -> None:
        x[...] = value

    return change


@sweep(
    pytest.mark.parametrize("operation", [forward, backward, attention]),
    pytest.mark.parametrize("dtype", ["f32", "bf16"]),
)
def test_the_sound_operation_passes(rng: np.random.Generator, operation: Any, dtype: str) -> None:
    Case(rng, operation, dtype).run(sound(operation))


FAULTS: dict[str, tuple[Any, Callable[..., None]]] = {
    "sign flip": (forward, spoiled(forward, negate)),
    "sign flip of the adapter": (forward, altered(forward, "b", np.negative)),
    "sign flip of a gradient": (backward, spoiled(backward, negate)),
    "transposed cotangent": (backward, altered(backward, "dy", np.transpose)),
    "dropped scale": (forward, altered(forward, "b", lambda b: b / np.float32(SCALE))),
    "dropped scale of a gradient": (backward, altered(backward, "a", lambda a: a / np.float32(SCALE))),
    "missing bias": (forward, altered(forward, "bias", np.zeros_like)),
    "missing last term of a sum": (forward, altered(forward, "x", lambda x: x * (np.arange(T) < T - 1))),
    "one NaN": (forward, spoiled(forward, put(np.nan))),
    "one infinity": (forward, spoiled(forward, put(np.inf))),
    "one wrong element": (forward, spoiled(forward, put(0.125))),
    "all NaN": (backward, spoiled(backward, fill(np.nan))),
    "all zero": (forward, spoiled(forward, fill(0))),
    "all zero gradient": (backward, spoiled(backward, fill(0))),
    "nothing written": (forward, lambda **_: None),
    "causal mask off by one": (attention, lambda **kw: sound(lambda **x: attention(**x, ahead=1))(**kw)),
    "causal mask missing": (attention, lambda **kw: sound(lambda **x: attention(**x, ahead=T))(**kw)),
    "the row's own key hidden": (attention, altered(attention, "k", lambda k: np.roll(k, 1, axis=0))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(rng: np.random.Generator, fault: str) -> None:
    operation, faulty = FAULTS[fault]
    with np.errstate(all="ignore"), pytest.raises(AssertionError, match=r"norm of|element|not finite"):
        Case(rng, operation).run(faulty)


def test_bf16_operands_are_not_an_excuse(rng: np.random.Generator) -> None:
    """Rounding W to bf16 passes the bound of bf16, not that of fp32; lost terms pass neither."""
    x: Array = from_bf16(to_bf16(rng.standard_normal((33, 96))))
    w = rng.standard_normal((33, 96)).astype(np.float32)
    inputs = {"x": x, "w": w}
    bounds = {"out": Bound("linear", np.abs(x) @ np.abs(w.T), 96, np.sqrt(x**2 @ (w**2).T))}
    truth = filling(lambda x, w: {"out": x @ w.T})

    def check(ours: Callable[..., Array], compute: str) -> None:
        def run(x: Array, w: Array, out: Array) -> None:
            out[...] = ours(x, w)

        check_op(run, truth, inputs, {"out": Output((33, 33))}, bounds, compute=compute)

    def rounded(x: Array, w: Array) -> Array:
        return x @ from_bf16(to_bf16(w)).T

    check(rounded, "bf16")
    with pytest.raises(AssertionError, match="times the bound"):
        check(rounded, "f32")
    with pytest.raises(AssertionError):
        check(lambda x, w: rounded(x[:, :90], w[:, :90]), "bf16")
    with pytest.raises(AssertionError):
        check(lambda x, w: rounded(x, w) * np.float32(1.01), "bf16")


def test_writing_outside_of_the_output_is_caught(rng: np.random.Generator) -> None:
    def run(**arrays: Array) -> None:
        sound(forward)(**arrays)
        out = arrays["out"]
        past = np.lib.stride_tricks.as_strided(out, (out.shape[0], out.shape[1] + 1), out.strides)
        past[2, -1] = 0

    with pytest.raises(AssertionError, match="outside"):
        Case(rng, forward).run(run)


def test_reading_outside_of_an_input_is_caught(rng: np.random.Generator) -> None:
    def run(**arrays: Array) -> None:
        x = arrays["x"]
        past = np.lib.stride_tricks.as_strided(x, (x.shape[0], x.shape[1] + 1), x.strides)
        arrays["out"][...] = forward(**{n: a for n, a in arrays.items() if n != "out"})["out"] + 0 * past[:, -1:]

    with pytest.raises(AssertionError, match="not finite"):
        Case(rng, forward).run(run)


def test_changing_an_input_is_caught(rng: np.random.Generator) -> None:
    def run(**arrays: Array) -> None:
        sound(forward)(**arrays)
        arrays["x"][0, 0] += 1

    with pytest.raises(AssertionError, match="written to"):
        Case(rng, forward).run(run)


@pytest.mark.parametrize(("value", "message"), [(0.0, "zero"), (np.nan, "not finite")])
def test_a_meaningless_reference_is_refused(value: float, message: str) -> None:
    def run(x: Array, out: Array) -> None:
        out[...] = value

    with pytest.raises(AssertionError, match=f"reference is {message}"):
        check_op(run, run, {"x": np.ones((2, 2))}, {"out": Output((2, 2))}, {"out": Bound("linear", np.ones((2, 2)))})


def test_a_bound_that_would_pass_zeros_is_refused() -> None:
    def run(x: Array, out: Array) -> None:
        out[...] = x

    with pytest.raises(AssertionError, match="too loose"):
        check_op(
            run, run, {"x": np.ones((2, 2))}, {"out": Output((2, 2))}, {"out": Bound("linear", np.full((2, 2), 1e6))}
        )


def test_accumulation_is_told_from_overwriting(rng: np.random.Generator) -> None:
    x, start = rng.standard_normal((2, 3, 4)).astype(np.float32)

    def overwrite(x: Array, out: Array) -> None:
        out[...] = x

    def add(x: Array, out: Array) -> None:
        out += x

    def check(ours: Callable[..., None], accumulate: bool) -> None:
        output = Output((3, 4), start=start if accumulate else None)
        reference = filling(lambda x: {"out": x}, accumulate)
        check_op(ours, reference, {"x": x}, {"out": output}, {"out": Bound("elementwise", np.abs(x) + np.abs(start))})

    check(overwrite, False)
    check(add, True)
    with pytest.raises(AssertionError):
        check(overwrite, True)
    with pytest.raises(AssertionError):
        check(add, False)


@pytest.mark.parametrize("fault", ["none", "sign", "scale", "transposed", "one element", "NaN", "zero"])
def test_finite_differences_judge_a_gradient(rng: np.random.Generator, fault: str) -> None:
    x, c = rng.standard_normal((2, 5, 5))
    gradient = c * np.cos(x)
    faulty = {
        "none": gradient,
        "sign": -gradient,
        "scale": gradient * (1 + 1e-6),
        "transposed": c.T * np.cos(x),
        "one element": gradient + 1e-5 * np.eye(5)[0],
        "NaN": gradient + np.where(np.eye(5) > 0, np.nan, 0),
        "zero": 0 * gradient,
    }[fault]

    def judge() -> None:
        check_gradient(lambda x: float(np.sum(c * np.sin(x))), {"x": x}, {"x": faulty}, rng)

    if fault == "none":
        judge()
    else:
        with pytest.raises(AssertionError):
            judge()


def test_bf16_rounds_to_nearest_even() -> None:
    """Every bf16 value, the midpoints above it, and their neighbours."""
    values = np.arange(0, 0x7F80, dtype=np.uint32) << 16
    even = (values >> 16) + (values >> 16) % 2
    assert np.array_equal(to_bf16(values.view(np.float32)), values >> 16)
    assert np.array_equal(to_bf16((values + 0x8000).view(np.float32)), even)
    assert np.array_equal(to_bf16((values + 0x7FFF).view(np.float32)), values >> 16)
    assert np.array_equal(to_bf16((values + 0x8001).view(np.float32)), (values >> 16) + 1)
    assert np.isnan(from_bf16(to_bf16([np.nan, -np.nan]))).all()
