"""Run an optimiser layer by layer: only one layer's parameters, gradients and states are in RAM at a time."""

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
from featherback.optim.rule import Rule, StepArgs, as_matrix, tiles

COMPUTE = "fp32"

Rate = Callable[[Slot], float]
"""Factor on the learning rate, per tensor."""


class LayerwiseOptimizer:
    """Apply a rule to parameters (layers, size). Between steps it keeps only `updates` and `states`."""

    def __init__(
        self,
        rule: Rule,
        parameters: PagedArray,
        slots: SlotTable,
        place: str | Path | None = None,
        rate: Rate = lambda slot: 1.0,
        seed: int = 0,
    ) -> None:
        """`slots`: the tensors in each layer's row. States start at 0, in RAM or in files in the folder `place`."""
        self.rule, self.parameters, self.slots, self.rate, self.seed = rule, parameters, slots, rate, seed
        self._step_bytes = step_bytes(rule, slots)
        self.updates = [0] * parameters.layers
        """Number of updates of each layer. It is the rule's step count."""
        self.states: Mapping[str, PagedArray] = {
            name: parameters.zeros_like(elements, None if place is None else Path(place) / f"{name}.f32")
            for name, elements in state_sizes(rule, slots).items()
        }

    def step(self, gradients: PagedArray, lr: float, grad_scale: float = 1.0) -> bool:
        """Update the parameters by `grad_scale * gradients`, both (layers, size). Return whether all are finite then.

        A layer without a gathered gradient keeps its values and states.
        """
        device = backend.of(COMPUTE)
        on = Device(device, device.arena(self._step_bytes))
        sizes = {name: state.size for name, state in self.states.items()}
        held = _Row.take(on, self.rule, self.parameters.size, sizes)
        arrays = [(self.parameters, held.values), *((self.states[name], row) for name, row in held.states.items())]
        finite = True
        for layer in self.parameters.rows:
            if not gradients.holds(layer):
                continue
            self.updates[layer] += 1
            gradients.fetch(layer, held.gradient, on)
            for paged, row in arrays:
                paged.fetch(layer, row, on)
            slots = self.slots.layer(layer)
            for slot, tensor in zip(slots, held.tensors(slots, layer), strict=True):
                turn = StepArgs(self.updates[layer], self.rate(slot) * lr, grad_scale, self.seed)
                self.rule.update(tensor, turn)
            for paged, row in arrays:
                paged.put(layer, row, on)
            finite = finite and math.isfinite(on.ops.sum_squares(held.values))  # summed in double: cannot overflow
        return finite

    @property
    def kept(self) -> PagedArray:
        """The values to save: their mean if the rule keeps one, else the parameters."""
        return self.states.get(MEAN, self.parameters)

    def close(self) -> None:
        """Free the states and close their files."""
        for state in self.states.values():
            state.close()


@dataclass
class _Row:
    """The arrays that a step holds for one layer."""

    on: Device
    rule: Rule
    values: Array  # (size,)
    gradient: Array  # (size,)
    states: dict[str, Array]

    @classmethod
    def take(cls, on: Device, rule: Rule, size: int, states: Mapping[str, int]) -> _Row:
        """Allocate the arrays. `size`: values per layer; `states`: elements of each state per layer."""
        values, gradient = (on.floats(name, size) for name in ("parameters", "gradients"))
        return cls(on, rule, values, gradient, {name: on.floats(name, count) for name, count in states.items()})

    def tensors(self, slots: Sequence[Slot], layer: int) -> Iterator[HeldTensor]:
        """Yield the layer's tensors as views of the arrays."""
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
    """A tensor in memory, with its gradient and its states. Implements `optim.rule.Tensor`."""

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
    """Return, for each state, the float32 elements of the layer that needs most."""
    sizes: dict[str, int] = {}
    for layer in slots.distinct:
        found: dict[str, int] = {}
        for slot in layer:
            for name, size in rule.state_sizes(slot.shape).items():
                found[name] = found.get(name, 0) + size
        sizes |= {name: max(sizes.get(name, 0), size) for name, size in found.items()}
    return sizes


def step_bytes(rule: Rule, slots: SlotTable) -> int:
    """Return the most bytes that a step holds, by running the step on a device that only counts."""
    ledger = Ledger()
    held = _Row.take(Device(Counting(COMPUTE), ledger), rule, slots.size, state_sizes(rule, slots))
    for number, layer in enumerate(slots.distinct):
        for tensor in held.tensors(layer, number):
            rule.update(tensor, StepArgs(1, 0.0))
    return ledger.high_water


def global_norm(gradients: PagedArray) -> float:
    """Return the Euclidean norm of all gradients (layers, size), summed in double."""
    device = backend.of(COMPUTE)
    on = Device(device, device.arena(norm_bytes(gradients.size)))
    row, total = on.floats("gradients", gradients.size), 0.0
    for layer in gradients.rows:
        gradients.fetch(layer, row, on)
        total += on.ops.sum_squares(row)
    return math.sqrt(total)


def norm_bytes(size: int) -> int:
    """Return the bytes that `global_norm` holds for gradients (layers, size)."""
    return aligned((size,), np.dtype(np.float32))


def clip_scale(norm: float, max_norm: float) -> float:
    """Return the factor that reduces gradients of this norm to `max_norm` (0 = no clipping); at most 1."""
    return max_norm / norm if 0 < max_norm < norm else 1.0
