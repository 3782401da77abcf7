"""The interface of optimisers. A rule sees one tensor at a time, some rows at a time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import starmap
from typing import ClassVar, NamedTuple, Protocol

from featherback.core import options
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.nn.slots import MATRIX

TILE = 1 << 18
"""Values of a tensor that are updated together. Some states are stored per tile, so memory plans cannot change it."""

PIECE = 1 << 14
"""Values per piece, where a rule needs scratch memory for its arithmetic."""


class StepArgs(NamedTuple):
    """Parameters of one optimiser step."""

    step: int  # counts from 1
    lr: float
    grad_scale: float = 1.0  # factor on the gradients
    seed: int = 0  # for random numbers


class Tensor(Protocol):
    """A trained tensor (rows, cols); a vector is one row. Its gradient is not stored but computed when it is read.

    All arrays are float32, on the device that trains.
    """

    @property
    def on(self) -> Device:
        """The device, with scratch memory for the rule."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def key(self) -> tuple[int, ...]:
        """A key for random numbers that differs from tensor to tensor."""

    @property
    def role(self) -> str:
        """MATRIX or TABLE, see `nn.slots`."""

    def gradient(self) -> Iterator[tuple[slice, Array]]:
        """Compute the gradient and yield it in tiles, in order: (rows, array (n, cols)).

        An array is valid until the next one is yielded. Each call computes the gradient again.
        """

    def read(self, rows: slice) -> AbstractContextManager[Array]:
        """Provide the values (n, cols) of a tile for reading. Changes are not stored."""

    def values(self, rows: slice) -> AbstractContextManager[Array]:
        """Provide the values (n, cols) of a tile for changing in place. They are stored at the end."""

    def state(self, name: str, first: int = 0, count: int | None = None) -> AbstractContextManager[Array]:
        """Provide elements [first, first + count) of a state (default: all), flat, for changing in place."""


def tiles(shape: tuple[int, int]) -> Iterator[slice]:
    """Yield a tensor's rows in tiles of at most TILE values, but at least one row."""
    count = tile_rows(shape)
    return (slice(first, min(first + count, shape[0])) for first in range(0, shape[0], count))


def tile_rows(shape: tuple[int, int]) -> int:
    """Return the rows per tile. The last tile may have fewer."""
    rows, cols = shape
    return max(1, min(rows, TILE // cols))


def pieces(on: Device, shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield a matrix's rows, or a vector's elements, in pieces of at most PIECE values, but at least one row.

    A counting device runs only some of them.
    """
    step, count = piece_rows(shape), shape[0]
    return starmap(slice, on.backend.each([(first, min(first + step, count)) for first in range(0, count, step)]))


def piece_rows(shape: tuple[int, ...]) -> int:
    """Return the rows or elements per piece. The last piece may have fewer."""
    return min(shape[0], max(1, PIECE // math.prod(shape[1:])))


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return a tensor's shape as rules see it: a vector is one row."""
    return math.prod(shape[:-1]), shape[-1]


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """An update rule. Its fields, each made by `options.option`, are the optimiser's options.

    Raises FeatherbackError, naming the option, for a value that is not allowed.
    """

    LEARNING_RATE: ClassVar[float]
    """Default peak learning rate for an adapter of a model of width 1,024. Needed if FOR_ADAPTERS."""
    FULL_LEARNING_RATE: ClassVar[float]
    """The same for whole models. Measured (docs/decisions/whole.md), or derived as the rule's module explains."""
    FOR_ADAPTERS: ClassVar[bool] = True
    """Whether the rule suits the small matrices of adapters."""
    WIDTH_POWER: ClassVar[float] = 0.0
    """For adapters, the default rate is multiplied by (width / 1,024) to this power."""
    FULL_WIDTH_POWER: ClassVar[float] = 0.0
    """The same for whole models."""

    def __post_init__(self) -> None:
        options.check(self)

    @property
    def moves_without_gradient(self) -> bool:
        """Whether an update with a zero gradient changes a value or a state."""
        return True

    @abstractmethod
    def state_sizes(self, shape: tuple[int, ...], role: str = MATRIX) -> dict[str, int]:
        """Return state -> float32 elements for a tensor of this shape. States start as zeros."""

    @abstractmethod
    def update(self, tensor: Tensor, turn: StepArgs) -> None:
        """Update a tensor's values and states, with `turn.grad_scale` times its gradient."""


@dataclass(frozen=True, kw_only=True)
class Elementwise(Rule):
    """A rule that updates each value from its own gradient and states only."""

    STATES: ClassVar[tuple[str, ...]] = ()
    """Names of the states: one element per value, zero at first."""

    def state_sizes(self, shape: tuple[int, ...], role: str = MATRIX) -> dict[str, int]:
        held = sum(self.held_size(_size(part, as_matrix(shape))) for part in tiles(as_matrix(shape)))
        return dict.fromkeys(self.STATES, held)

    def update(self, tensor: Tensor, turn: StepArgs) -> None:
        whole = self.held_size(tile_rows(tensor.shape) * tensor.shape[1])
        for number, (rows, gradient) in enumerate(tensor.gradient()):
            size = math.prod(gradient.shape)
            count = self.held_size(size)
            with tensor.values(rows) as values, ExitStack() as stack:
                held = [stack.enter_context(tensor.state(name, number * whole, count)) for name in self.STATES]
                with self.unpacked(tensor.on, held, size, (turn.seed, turn.step, *tensor.key, number)) as states:
                    self.change(tensor.on, values.reshape(size), gradient.reshape(size), states, turn)

    @classmethod
    def held_size(cls, size: int) -> int:
        """Return the float32 elements that store a state of `size` values of a tile."""
        return size

    def unpacked(
        self, on: Device, held: Sequence[Array], size: int, key: tuple[int, ...]
    ) -> AbstractContextManager[Sequence[Array]]:
        """Provide the states of `size` values as `change` expects them. By default they are stored that way.

        A subclass that stores them in another form converts them, and stores them again at the end. `key`: for random
        numbers.
        """
        return nullcontext(held)

    @abstractmethod
    def change(self, on: Device, values: Array, gradient: Array, states: Sequence[Array], turn: StepArgs) -> None:
        """Update `values` and `states` (in the order of STATES) in place. All arrays are flat."""


def _size(rows: slice, shape: tuple[int, int]) -> int:
    return (rows.stop - rows.start) * shape[1]
