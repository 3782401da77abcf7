"""Runs an optimiser: parameters, gradients and states pass through RAM one layer at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from featherback import kernels
from featherback.host.paged import PagedArray
from featherback.optim.rule import Rule


class LayerwiseOptimizer:
    """A rule applied to parameters (layers, size). `steps` and `states` are all it remembers between steps."""

    def __init__(self, rule: Rule, parameters: PagedArray, place: str | Path | None = None) -> None:
        """States start at 0, in RAM, or in files of the folder `place`."""
        self.rule = rule
        self.parameters = parameters
        self.steps = 0
        self.states: Mapping[str, PagedArray] = {
            name: PagedArray(
                parameters.layers, elements, None if place is None else Path(place) / f"{name}.f32"
            )
            for name, elements in rule.state_sizes((parameters.size,)).items()
        }

    def step(self, gradients: PagedArray, lr: float, grad_scale: float = 1.0) -> bool:
        """Update the parameters from `grad_scale * gradients`; both (layers, size). Whether all are finite after it."""
        self.steps += 1
        parameter, gradient = (np.empty(self.parameters.size, np.float32) for _ in range(2))
        states = [np.empty(paged.size, np.float32) for paged in self.states.values()]
        finite = True
        for layer in range(self.parameters.layers):
            self.parameters.read(layer, parameter)
            gradients.read(layer, gradient)
            for state, paged in zip(states, self.states.values(), strict=True):
                paged.read(layer, state)
            self.rule.update(parameter, gradient, states, self.steps, lr, grad_scale)
            self.parameters.write(layer, parameter)
            finite = finite and math.isfinite(kernels.sum_squares(parameter))  # in double: nothing overflows
            for state, paged in zip(states, self.states.values(), strict=True):
                paged.write(layer, state)
        return finite

    def close(self) -> None:
        """Release the states."""
        for state in self.states.values():
            state.close()


def global_norm(gradients: PagedArray) -> float:
    """The Euclidean norm of all the gradients (layers, size), summed in double."""
    row = np.empty(gradients.size, np.float32)
    total = 0.0
    for layer in range(gradients.layers):
        gradients.read(layer, row)
        total += kernels.sum_squares(row)
    return math.sqrt(total)


def clip_scale(norm: float, max_norm: float) -> float:
    """The factor that brings gradients of this norm down to `max_norm` (0 = off); 1 if they are small."""
    return max_norm / norm if 0 < max_norm < norm else 1.0
