"""What the optimisers share: parameters, gradients and states pass through RAM one layer at a time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.adapters.lora import LoRA
from featherback.host.paged import PagedArray

Float32 = NDArray[np.float32]


class LayerwiseOptimizer(ABC):
    """An optimiser of an adapter's parameters. `steps` and `states` are all it remembers between steps."""

    STATES: ClassVar[tuple[str, ...]] = ()  # names of its states, each as large as the parameters

    def __init__(self, adapter: LoRA, place: str | Path | None = None) -> None:
        """States start at 0, in RAM, or in files of the folder `place`."""
        self.parameters = adapter.parameters
        self.steps = 0
        self.states: Mapping[str, PagedArray] = {
            name: PagedArray(
                self.parameters.layers,
                self.parameters.size,
                None if place is None else Path(place) / f"{name}.f32",
            )
            for name in self.STATES
        }

    def step(self, gradients: PagedArray, lr: float, grad_scale: float = 1.0) -> None:
        """Update the parameters from `grad_scale * gradients`; both (layers, size)."""
        self.steps += 1
        size = self.parameters.size
        parameter, gradient, *states = (np.empty(size, np.float32) for _ in range(2 + len(self.states)))
        for layer in range(self.parameters.layers):
            self.parameters.read(layer, parameter)
            gradients.read(layer, gradient)
            for state, paged in zip(states, self.states.values(), strict=True):
                paged.read(layer, state)
            self._update(parameter, gradient, states, lr, grad_scale)
            self.parameters.write(layer, parameter)
            for state, paged in zip(states, self.states.values(), strict=True):
                paged.write(layer, state)

    @abstractmethod
    def _update(
        self, parameter: Float32, gradient: Float32, states: list[Float32], lr: float, grad_scale: float
    ) -> None:
        """Update one layer's parameters and states, each (size,), in place."""

    def close(self) -> None:
        """Let go of the states."""
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
