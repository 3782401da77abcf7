"""Run an optimiser layer by layer, and a part of a large layer at a time.

Only the parameters, gradients and states of this part are in RAM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from featherback.engine import backend
from featherback.engine.backend.arena import aligned
from featherback.engine.backend.counting import Counting, Ledger
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.engine.host.paged import PagedArray
from featherback.nn.slots import MATRIX, Slot, SlotTable
from featherback.optim.average import MEAN
from featherback.optim.rule import Rule, StepArgs, as_matrix, tiles

COMPUTE = "fp32"
TOGETHER = 1 << 20
"""Parameters that are updated together. A larger tensor is updated by itself."""

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
        finite = True
        for layer in self.parameters.rows:
            if not gradients.holds(layer):
                continue
            self.updates[layer] += 1
            for part in _parts(self.rule, self.slots.layer(layer)):
                with on.frame():
                    held = _Held.take(on, part)
                    arrays = [(self.parameters, held.values, part.first)]
                    arrays += [(self.states[name], row, part.states[name].start) for name, row in held.states.items()]
                    gradients.fetch(layer, held.gradient, on, part.first)
                    for paged, row, first in arrays:
                        paged.fetch(layer, row, on, first)
                    for slot, tensor in zip(part.slots, held.tensors(self.rule, layer), strict=True):
                        turn = StepArgs(self.updates[layer], self.rate(slot) * lr, grad_scale, self.seed)
                        self.rule.update(tensor, turn)
                    for paged, row, first in arrays:
                        paged.put(layer, row, on, first)
                    finite = finite and math.isfinite(on.ops.sum_squares(held.values))  # in double: cannot overflow
        return finite

    @property
    def kept(self) -> PagedArray:
        """The values to save: their mean if the rule keeps one, else the parameters."""
        return self.states.get(MEAN, self.parameters)

    def close(self) -> None:
        """Free the states and close their files."""
        for state in self.states.values():
            state.close()


class _Part(NamedTuple):
    """Consecutive tensors of a layer that are updated together."""

    slots: Sequence[Slot]
    number: int  # of the first tensor in its layer
    first: int  # index of the first value in the layer's row
    size: int  # number of values
    states: Mapping[str, slice]  # elements of each state's row


def _parts(rule: Rule, slots: Sequence[Slot]) -> Iterator[_Part]:
    """Divide the tensors of a layer into parts of at most TOGETHER values, or of a single tensor."""
    taken: list[Slot] = []
    ends: dict[str, int] = {}

    def part(until: int) -> _Part:
        begins = dict(ends)
        for slot in taken:
            for name, size in rule.state_sizes(slot.shape).items():
                ends[name] = ends.get(name, 0) + size
        states = {name: slice(begins.get(name, 0), end) for name, end in ends.items()}
        return _Part(list(taken), until - len(taken), taken[0].start, sum(slot.size for slot in taken), states)

    for number, slot in enumerate(slots):
        if taken and sum(each.size for each in taken) + slot.size > TOGETHER:
            yield part(number)
            taken.clear()
        taken.append(slot)
    if taken:
        yield part(len(slots))


@dataclass
class _Held:
    """The arrays that a step holds for a part of a layer."""

    on: Device
    part: _Part
    values: Array  # (size,)
    gradient: Array  # (size,)
    states: dict[str, Array]

    @classmethod
    def take(cls, on: Device, part: _Part) -> _Held:
        """Allocate the arrays in the current frame."""
        values, gradient = (on.floats(name, part.size) for name in ("parameters", "gradients"))
        states = {name: on.floats(name, place.stop - place.start) for name, place in part.states.items()}
        return cls(on, part, values, gradient, states)

    def tensors(self, rule: Rule, layer: int) -> Iterator[HeldTensor]:
        """Yield the tensors as views of the arrays."""
        first = dict.fromkeys(self.states, 0)
        for number, slot in enumerate(self.part.slots, self.part.number):
            states = {}
            for name, size in rule.state_sizes(slot.shape).items():
                states[name] = self.states[name][first[name] : first[name] + size]
                first[name] += size
            begin = slot.start - self.part.first
            part, shape = slice(begin, begin + slot.size), as_matrix(slot.shape)
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
    on = Device(Counting(COMPUTE), ledger)
    for number, layer in enumerate(slots.distinct):
        for part in _parts(rule, layer):
            with on.frame():
                for tensor in _Held.take(on, part).tensors(rule, number):
                    rule.update(tensor, StepArgs(1, 0.0))
    return ledger.high_water


def global_norm(gradients: PagedArray) -> float:
    """Return the Euclidean norm of all gradients (layers, size), summed in double."""
    device = backend.of(COMPUTE)
    on = Device(device, device.arena(norm_bytes(gradients.size)))
    row, total = on.floats("gradients", min(gradients.size, TOGETHER)), 0.0
    for layer in gradients.rows:
        for first in range(0, gradients.size, TOGETHER):
            part = row[: gradients.size - first]
            gradients.fetch(layer, part, on, first)
            total += on.ops.sum_squares(part)
    return math.sqrt(total)


def norm_bytes(size: int) -> int:
    """Return the bytes that `global_norm` holds for gradients (layers, size)."""
    return aligned((min(size, TOGETHER),), np.dtype(np.float32))


def clip_scale(norm: float, max_norm: float) -> float:
    """Return the factor that reduces gradients of this norm to `max_norm` (0 = no clipping); at most 1."""
    return max_norm / norm if 0 < max_norm < norm else 1.0
