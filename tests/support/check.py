"""One checker for every kernel: its outputs against a reference, within a bound computed from its inputs.

`check_op` runs an operation on arrays embedded in NaN (a read outside of them shows), into outputs filled
with NaN (an element never written shows), and compares each output twice:

    each element   |ours - reference|  <=  u (steps + sqrt(terms))   magnitude   +  u_bf16 operand   magnitude
    the whole     ||ours - reference|| <=  u (steps + sqrt(terms)) ||magnitude|| +  u_bf16 operand ||spread||

both plus the rounding to the output's type, and what an operation approximates. `u` is the unit roundoff of the
arithmetic, `magnitude` the operation on absolute values (its sums if nothing cancelled), `terms` how many products
an output sums. The second line is the sharper one for bf16: independent roundings of the operands average out, which
`spread` says, the root of the sum of the squared terms. `steps` and `operand` stand in the table below, with their
reasons; no test has a threshold of its own.

A bound so loose that it would pass zeros is an error, and so is a reference that is zero or not finite.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.bf16 import narrow, widen
from tests.support.guard import Guarded

Array = NDArray[Any]
Arrays = Mapping[str, Array]

ROUNDOFF = {"f32": 2.0**-24, "bf16": 2.0**-8, "f64": 2.0**-53}
FLOOR = 1e-30  # smaller is as good as zero: exp may flush or saturate near float32's smallest normal numbers
NUMPY = {"f32": np.float32, "bf16": np.uint16, "f64": np.float64}


@dataclass(frozen=True)
class Tolerance:
    steps: float  # roundings an element meets apart from its sum, in units of the arithmetic's roundoff
    operand: float  # roundings to bf16 that a term may meet inside the kernel, when computing in bf16
    why: str


TOLERANCES = {
    "linear": Tolerance(4, 1, "W is unpacked to bf16 panels, b rounded with them; x and h are bf16 already"),
    "linear_backward": Tolerance(4, 1, "as linear: W and a are rounded, dy and dh are bf16 already"),
    "lora_in": Tolerance(4, 0, "a stays float32, x is bf16 already"),
    "lora_gradient": Tolerance(4, 0, "both factors are operands: products of bf16 are exact in float32"),
    "rms_norm": Tolerance(8, 0, "one sum of squares, a square root, a division, two products"),
    "rms_norm_backward": Tolerance(12, 0, "rms_norm's roundings, a second sum, and the residual's addition"),
    "rope": Tolerance(4, 0, "two products and a sum"),
    "glu": Tolerance(16, 0, "an exponential (2 ulp), 1 + e, a division, two products"),
    "attention": Tolerance(4, 0, "scores' roundings reach p through exp: the magnitude carries that factor"),
    "cross_entropy": Tolerance(16, 0, "exponentials, their sum, a logarithm; the logits are float32 in any case"),
    "cross_entropy_gradient": Tolerance(16, 2, "p and W are rounded to bf16 in p W; the rest as above"),
    "adamw": Tolerance(16, 0, "a square root, two divisions, and some ten products and sums"),
    "sgd": Tolerance(6, 0, "three products and two sums"),
    "elementwise": Tolerance(2, 0, "one operation"),
}


@dataclass(frozen=True)
class Bound:
    """What an output's error is measured by: a line of the table, and the quantities of the bounds above."""

    tolerance: str
    magnitude: Array
    terms: int = 1
    spread: Array | None = None  # needed where operands may be rounded; None: the magnitude
    approximated: Array | float = 0.0  # the most that an approximation may change an element


@dataclass(frozen=True)
class Output:
    """An array the operation writes: its type, and its contents before the call (None: poison)."""

    shape: tuple[int, ...]
    dtype: str = "f32"
    start: Array | None = None

    def allocate(self, dtype: str | None = None) -> Guarded:
        dtype = dtype or self.dtype
        if self.start is None:
            return Guarded(self.shape, NUMPY[dtype])
        assert self.start.shape == self.shape
        return Guarded.holding(narrow(narrow_and_widen(self.start, self.dtype), dtype))


def narrow_and_widen(values: Array, dtype: str) -> Array:
    """float64 values that `dtype` can hold."""
    return widen(narrow(values, dtype))


def compare(
    name: str, ours: Array, reference: Array, bound: Bound, *, stored: str, compute: str, vanishing: bool = False
) -> None:
    """Raise AssertionError unless `ours` is within the bound; `vanishing`: the exact result is zero."""
    ours, reference = widen(ours), widen(reference)
    assert ours.shape == reference.shape, f"{name}: shape {ours.shape}, expected {reference.shape}"
    assert np.isfinite(reference).all(), f"{name}: the reference is not finite"
    assert vanishing or np.any(reference != 0), f"{name}: the reference is zero, the comparison would mean nothing"
    unwritten = ~np.isfinite(ours)
    assert not unwritten.any(), f"{name}: {unwritten.sum()} of {ours.size} not finite, first at {_first(unwritten)}"

    tolerance = TOLERANCES[bound.tolerance]
    magnitude = np.broadcast_to(np.abs(bound.magnitude), ours.shape)
    rounding = ROUNDOFF["f64" if compute == "f64" else "f32"] * (tolerance.steps + bound.terms**0.5)
    operand = ROUNDOFF["bf16"] * tolerance.operand if compute == "bf16" else 0.0
    storage = ROUNDOFF[stored] * 1.01

    error = np.abs(ours - reference)
    allowed = (rounding + operand) * magnitude + storage * np.abs(reference) + FLOOR + bound.approximated
    worst = np.unravel_index(np.argmax(error / allowed), error.shape)
    assert error[worst] <= allowed[worst], (
        f"{name}: element {tuple(map(int, worst))} is {ours[worst]:.9g}, expected {reference[worst]:.9g}: "
        f"error {error[worst]:.3g} is {error[worst] / allowed[worst]:.3g} times the bound; "
        f"{(error > allowed).sum()} of {error.size} elements are out"
    )
    total = np.linalg.norm(reference)
    spread = magnitude if bound.spread is None else bound.spread
    whole = rounding * np.linalg.norm(magnitude) + operand * np.linalg.norm(spread) + storage * total
    whole += FLOOR * ours.size**0.5 + float(np.linalg.norm(bound.approximated))
    distance = np.linalg.norm(ours - reference)
    assert distance <= whole, f"{name}: norm of the error {distance:.3g} exceeds {whole:.3g} (reference {total:.3g})"
    assert vanishing or whole < 0.1 * total, f"{name}: the bound {whole:.3g} is too loose for a result of {total:.3g}"


def check_op(
    ours: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Arrays,
    outputs: Mapping[str, Output],
    bounds: Mapping[str, Bound],
    *,
    compute: str = "f32",
    vanishing: Collection[str] = (),
) -> dict[str, Array]:
    """Run both on the same inputs and compare the outputs that have a bound; return ours, widened.

    Both take the inputs and outputs by keyword and fill the outputs; the reference's outputs are float64.
    Inputs must come out unchanged, and so must everything around inputs and outputs.
    """
    given = {name: Guarded.holding(array) for name, array in inputs.items()}
    views = {name: guarded.view for name, guarded in given.items()}
    filled = {name: output.allocate() for name, output in outputs.items()}
    expected = {name: output.allocate("f64") for name, output in outputs.items()}

    reference(**views, **{name: guarded.view for name, guarded in expected.items()})
    ours(**views, **{name: guarded.view for name, guarded in filled.items()})

    for name, guarded in given.items():
        assert guarded.intact(), f"input {name} was written to"
    for name, guarded in filled.items():
        assert guarded.surroundings_intact(), f"output {name} was written outside of its rows and columns"
    for name, bound in bounds.items():
        compare(
            name,
            filled[name].view,
            expected[name].view,
            bound,
            stored=outputs[name].dtype,
            compute=compute,
            vanishing=name in vanishing,
        )
    return {name: widen(guarded.view) for name, guarded in filled.items()}


def filling(function: Callable[..., Arrays], accumulate: bool = False) -> Callable[..., None]:
    """Make a reference for `check_op` of a function from float64 inputs, by name, to a dictionary of results.

    Results that are not among the outputs are ignored.
    """
    wanted = inspect.signature(function).parameters

    def fill(**arrays: Array) -> None:
        results = function(**{name: widen(array) for name, array in arrays.items() if name in wanted})
        for name in results.keys() & arrays.keys():
            arrays[name][...] = results[name] + (arrays[name] if accumulate else 0)

    return fill


def check_gradient(
    value: Callable[..., float],
    inputs: Arrays,
    gradients: Arrays,
    rng: np.random.Generator,
    *,
    step: float = 1e-3,
    tolerance: float = 1e-8,
) -> None:
    """Compare gradients of a scalar function with finite differences along random directions, in float64.

    A five-point formula: the truncation error is of order step**4. `value` takes the inputs by keyword; each
    input that has a gradient is varied alone, in three directions.
    """
    for name, gradient in gradients.items():
        assert np.isfinite(gradient).all(), f"gradient of {name} is not finite"
        assert np.any(gradient != 0), f"gradient of {name} is zero"
        for _ in range(3):
            direction = rng.standard_normal(inputs[name].shape)

            def at(distance: float, name: str = name, direction: Array = direction) -> float:
                return value(**{**inputs, name: inputs[name] + distance * direction})

            slope = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
            claimed = float(np.sum(gradient * direction))
            scale = float(np.linalg.norm(gradient) * np.linalg.norm(direction)) / direction.size**0.5
            assert abs(slope - claimed) <= tolerance * scale, (
                f"gradient of {name}: finite differences give {slope:.12g}, the backward {claimed:.12g}"
            )


def _first(mask: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])
