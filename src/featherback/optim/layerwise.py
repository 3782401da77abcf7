"""Runs an optimiser: parameters, gradients and states pass through RAM one layer at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from featherback import kernels
from featherback.host.paged import PagedArray
from featherback.optim.average import MEAN
from featherback.optim.rule import Float32, Rule, Turn, as_matrix, tiles
from featherback.parameters.roles import MATRIX
from featherback.parameters.slots import Slot, SlotTable

Rate = Callable[[Slot], float]
"""A tensor's share of the learning rate."""


class LayerwiseOptimizer:
    """A rule applied to parameters (layers, size). `updates` and `states` are all it remembers between steps."""

    def __init__(
        self,
        rule: Rule,
        parameters: PagedArray,
        slots: SlotTable,
        place: str | Path | None = None,
        rate: Rate = lambda slot: 1.0,
        seed: int = 0,
    ) -> None:
        """`slots`: the tensors of a layer's row. States start at 0, in RAM, or in files of the folder `place`."""
        self.rule, self.parameters, self.slots, self.rate, self.seed = rule, parameters, slots, rate, seed
        self.updates = [0] * parameters.layers
        """Of each layer: the number of its steps, as the rule counts them."""
        self.states: Mapping[str, PagedArray] = {
            name: PagedArray(parameters.layers, elements, None if place is None else Path(place) / f"{name}.f32")
            for name, elements in state_sizes(rule, slots).items()
        }

    def step(self, gradients: PagedArray, lr: float, grad_scale: float = 1.0) -> bool:
        """Update the parameters from `grad_scale * gradients`; both (layers, size). Whether all are finite after it.

        A layer that no gradient was gathered for is left alone, and so are its states.
        """
        parameter, gradient = (np.empty(self.parameters.size, np.float32) for _ in range(2))
        held = {name: np.empty(paged.size, np.float32) for name, paged in self.states.items()}
        finite = True
        for layer in range(self.parameters.layers):
            if not gradients.holds(layer):
                continue
            self.updates[layer] += 1
            self.parameters.read(layer, parameter)
            gradients.read(layer, gradient)
            for name, row in held.items():
                self.states[name].read(layer, row)
            first = dict.fromkeys(held, 0)
            for number, slot in enumerate(self.slots.layer(layer)):
                states = {}
                for name, size in self.rule.state_sizes(slot.shape).items():
                    states[name] = held[name][first[name] : first[name] + size]
                    first[name] += size
                part, shape = slice(slot.start, slot.start + slot.size), as_matrix(slot.shape)
                values, own = parameter[part].reshape(shape), gradient[part].reshape(shape)
                turn = Turn(self.updates[layer], self.rate(slot) * lr, grad_scale, self.seed)
                self.rule.update(HeldTensor(values, own, states, (layer, number)), turn)
            self.parameters.write(layer, parameter)
            finite = finite and math.isfinite(kernels.sum_squares(parameter))  # in double: nothing overflows
            for name, row in held.items():
                self.states[name].write(layer, row)
        return finite

    @property
    def kept(self) -> PagedArray:
        """The values to keep: their mean, where the rule has it, or the parameters."""
        return self.states.get(MEAN, self.parameters)

    def close(self) -> None:
        """Release the states."""
        for state in self.states.values():
            state.close()


@dataclass(frozen=True)
class HeldTensor:
    """A tensor that is in memory: all of it, with its gradient and its states."""

    all_values: Float32  # (rows, cols)
    all_gradient: Float32  # (rows, cols)
    states: Mapping[str, Float32]  # flat
    key: tuple[int, ...] = ()
    role: str = MATRIX

    @property
    def shape(self) -> tuple[int, int]:
        rows, cols = self.all_values.shape
        return rows, cols

    def gradient(self) -> Iterator[tuple[slice, Float32]]:
        return ((rows, self.all_gradient[rows]) for rows in tiles(self.shape))

    @contextmanager
    def read(self, rows: slice) -> Iterator[Float32]:
        yield self.all_values[rows]

    @contextmanager
    def values(self, rows: slice) -> Iterator[Float32]:
        yield self.all_values[rows]

    @contextmanager
    def state(self, name: str, first: int = 0, count: int | None = None) -> Iterator[Float32]:
        yield self.states[name][first : None if count is None else first + count]


def state_sizes(rule: Rule, slots: SlotTable) -> dict[str, int]:
    """State -> float32 elements that it has for a layer, the largest one."""
    sizes: dict[str, int] = {}
    for layer in range(slots.layers):
        found: dict[str, int] = {}
        for slot in slots.layer(layer):
            for name, size in rule.state_sizes(slot.shape).items():
                found[name] = found.get(name, 0) + size
        sizes |= {name: max(sizes.get(name, 0), size) for name, size in found.items()}
    return sizes


def held_rows(rule: Rule, slots: SlotTable) -> list[int]:
    """float32 elements of each array that a step holds: parameters and gradients of a layer first."""
    every = [slot for layer in range(slots.layers) for slot in slots.layer(layer)]
    most, beside = max(slot.size for slot in every), max(rule.workspace(slot.shape) for slot in every)
    held: Sequence[int] = list(state_sizes(rule, slots).values())
    return [slots.size, slots.size, *held, *[most] * rule.TEMPORARIES, *[beside] * (beside > 0)]


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
