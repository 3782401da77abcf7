"""Runs an optimiser: parameters, gradients and states pass through RAM one layer at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from featherback.engine import backend
from featherback.engine.backend.arena import aligned
from featherback.engine.backend.counting import Counting, Ledger
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.engine.host.paged import PagedArray
from featherback.nn.roles import MATRIX
from featherback.nn.slots import Slot, SlotTable
from featherback.optim.average import MEAN
from featherback.optim.rule import Rule, Turn, as_matrix, tiles

COMPUTE = "fp32"

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
        self._step_bytes = step_bytes(rule, slots)
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
        device = backend.of(COMPUTE)
        on = Device(device, device.arena(self._step_bytes))
        sizes = {name: state.size for name, state in self.states.items()}
        held = _Row.take(on, self.rule, self.parameters.size, sizes)
        arrays = [(self.parameters, held.values), *((self.states[name], row) for name, row in held.states.items())]
        finite = True
        for layer in range(self.parameters.layers):
            if not gradients.holds(layer):
                continue
            self.updates[layer] += 1
            gradients.fetch(layer, held.gradient, on)
            for paged, row in arrays:
                paged.fetch(layer, row, on)
            slots = self.slots.layer(layer)
            for slot, tensor in zip(slots, held.tensors(slots, layer), strict=True):
                turn = Turn(self.updates[layer], self.rate(slot) * lr, grad_scale, self.seed)
                self.rule.update(tensor, turn)
            for paged, row in arrays:
                paged.put(layer, row, on)
            finite = finite and math.isfinite(on.ops.sum_squares(held.values))  # in double: nothing overflows
        return finite

    @property
    def kept(self) -> PagedArray:
        """The values to keep: their mean, where the rule has it, or the parameters."""
        return self.states.get(MEAN, self.parameters)

    def close(self) -> None:
        """Release the states."""
        for state in self.states.values():
            state.close()


@dataclass
class _Row:
    """What a step holds of a layer."""

    on: Device
    rule: Rule
    values: Array  # (size,)
    gradient: Array  # (size,)
    states: dict[str, Array]

    @classmethod
    def take(cls, on: Device, rule: Rule, size: int, states: Mapping[str, int]) -> _Row:
        """`size`: of the values of a layer; `states`: of each of its states."""
        values, gradient = (on.floats(name, size) for name in ("parameters", "gradients"))
        return cls(on, rule, values, gradient, {name: on.floats(name, count) for name, count in states.items()})

    def tensors(self, slots: Sequence[Slot], layer: int) -> Iterator[HeldTensor]:
        """The tensors of a layer."""
        first = dict.fromkeys(self.states, 0)
        for number, slot in enumerate(slots):
            states = {}
            for name, size in self.rule.state_sizes(slot.shape).items():
                states[name] = self.states[name][first[name] : first[name] + size]
                first[name] += size
            part, shape = slice(slot.start, slot.start + slot.size), as_matrix(slot.shape)
            values, gradient = self.values[part].reshape(*shape), self.gradient[part].reshape(*shape)
            yield HeldTensor(self.on, values, gradient, states, (layer, number))


@dataclass(frozen=True)
class HeldTensor:
    """A tensor that is in memory: all of it, with its gradient and its states."""

    on: Device
    all_values: Array  # (rows, cols)
    all_gradient: Array  # (rows, cols)
    states: Mapping[str, Array]  # flat
    key: tuple[int, ...] = ()
    role: str = MATRIX

    @property
    def shape(self) -> tuple[int, int]:
        rows, cols = self.all_values.shape
        return rows, cols

    def gradient(self) -> Iterator[tuple[slice, Array]]:
        return ((rows, self.all_gradient[rows]) for rows in tiles(self.shape))

    @contextmanager
    def read(self, rows: slice) -> Iterator[Array]:
        yield self.all_values[rows]

    @contextmanager
    def values(self, rows: slice) -> Iterator[Array]:
        yield self.all_values[rows]

    @contextmanager
    def state(self, name: str, first: int = 0, count: int | None = None) -> Iterator[Array]:
        held = self.states[name]
        yield held[first : len(held) if count is None else first + count]


def state_sizes(rule: Rule, slots: SlotTable) -> dict[str, int]:
    """State -> float32 elements that it has for a layer, the largest one."""
    sizes: dict[str, int] = {}
    for layer in slots.distinct:
        found: dict[str, int] = {}
        for slot in layer:
            for name, size in rule.state_sizes(slot.shape).items():
                found[name] = found.get(name, 0) + size
        sizes |= {name: max(sizes.get(name, 0), size) for name, size in found.items()}
    return sizes


def step_bytes(rule: Rule, slots: SlotTable) -> int:
    """Bytes that a step holds at most: it is run where nothing is computed."""
    ledger = Ledger()
    held = _Row.take(Device(Counting(COMPUTE), ledger), rule, slots.size, state_sizes(rule, slots))
    for number, layer in enumerate(slots.distinct):
        for tensor in held.tensors(layer, number):
            rule.update(tensor, Turn(1, 0.0))
    return ledger.high_water


def global_norm(gradients: PagedArray) -> float:
    """The Euclidean norm of all the gradients (layers, size), summed in double."""
    device = backend.of(COMPUTE)
    on = Device(device, device.arena(norm_bytes(gradients.size)))
    row, total = on.floats("gradients", gradients.size), 0.0
    for layer in range(gradients.layers):
        gradients.fetch(layer, row, on)
        total += on.ops.sum_squares(row)
    return math.sqrt(total)


def norm_bytes(size: int) -> int:
    """Bytes that `global_norm` holds of gradients (layers, size)."""
    return aligned((size,), np.dtype(np.float32))


def clip_scale(norm: float, max_norm: float) -> float:
    """The factor that brings gradients of this norm down to `max_norm` (0 = off); 1 if they are small."""
    return max_norm / norm if 0 < max_norm < norm else 1.0
