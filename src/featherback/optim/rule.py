"""What an optimiser declares and computes. It sees tensors, some rows at a time, whatever they belong to."""

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
from featherback.nn.roles import MATRIX

TILE = 1 << 18
"""Values of a tensor that are changed at once; states are held by such tiles, so it is no matter of memory plans."""

PIECE = 1 << 14
"""Values that a rule computes with at once where it needs room for them."""


class Turn(NamedTuple):
    """One step of an optimiser."""

    step: int  # counts from 1
    lr: float
    grad_scale: float = 1.0  # what gradients are multiplied by
    seed: int = 0  # of random numbers


class Tensor(Protocol):
    """A trained tensor (rows, cols), a vector being one row. Its gradient is not held: it is computed as it is read.

    Its arrays are float32, of the device that it is trained on.
    """

    @property
    def on(self) -> Device:
        """The device, and the memory for what a rule holds beside those arrays."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def key(self) -> tuple[int, ...]:
        """Which tensor it is: random numbers depend on it."""

    @property
    def role(self) -> str:
        """MATRIX or TABLE, of `nn.roles`."""

    def gradient(self) -> Iterator[tuple[slice, Array]]:
        """Rows in order, in the tiles of `tiles`, and their gradient (n, cols), valid until the next; ever anew."""

    def read(self, rows: slice) -> AbstractContextManager[Array]:
        """The values (n, cols) of such a tile, to be looked at: nothing is stored."""

    def values(self, rows: slice) -> AbstractContextManager[Array]:
        """The same, to be changed in place: they are stored at the end."""

    def state(self, name: str, first: int = 0, count: int | None = None) -> AbstractContextManager[Array]:
        """Elements [first, first + count) of a state (default: all), flat, to be changed in place."""


def tiles(shape: tuple[int, int]) -> Iterator[slice]:
    """The rows of a tensor in tiles of at most TILE values, at least one row each."""
    count = tile_rows(shape)
    return (slice(first, min(first + count, shape[0])) for first in range(0, shape[0], count))


def tile_rows(shape: tuple[int, int]) -> int:
    """Rows of a tile; the last may have fewer."""
    rows, cols = shape
    return max(1, min(rows, TILE // cols))


def pieces(on: Device, shape: tuple[int, ...]) -> Iterator[slice]:
    """The rows of a matrix, or the elements of a vector, in pieces of at most PIECE values, at least one row each:
    those that the device has to run."""
    step, count = piece_rows(shape), shape[0]
    return starmap(slice, on.backend.each([(first, min(first + step, count)) for first in range(0, count, step)]))


def piece_rows(shape: tuple[int, ...]) -> int:
    """Rows, or elements, of a piece; the last may have fewer."""
    return min(shape[0], max(1, PIECE // math.prod(shape[1:])))


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """A tensor's shape as rules see it: a vector is one row."""
    return math.prod(shape[:-1]), shape[-1]


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """An update rule. Its fields, each made by `options.option`, are the optimiser's options.

    FeatherbackError, naming the option, for a value that an option cannot have.
    """

    LEARNING_RATE: ClassVar[float]
    """The peak learning rate where none is named, for an adapter of a model that is 1,024 wide; where FOR_ADAPTERS."""
    FULL_LEARNING_RATE: ClassVar[float]
    """The same for whole models; measured, as docs/decisions/whole.md says, or derived as the rule's file does."""
    FOR_ADAPTERS: ClassVar[bool] = True
    """Whether it makes sense for the small matrices of adapters."""
    WIDTH_POWER: ClassVar[float] = 0.0
    """An adapter's rate is multiplied by the model's width / 1,024 to this power."""
    FULL_WIDTH_POWER: ClassVar[float] = 0.0
    """The same for whole models."""

    def __post_init__(self) -> None:
        options.check(self)

    @property
    def moves_without_gradient(self) -> bool:
        """Whether a value changes, or a state, where the gradient is zero."""
        return True

    @abstractmethod
    def state_sizes(self, shape: tuple[int, ...], role: str = MATRIX) -> dict[str, int]:
        """State -> float32 elements that it has for a tensor of this shape, zeros before the first step."""

    @abstractmethod
    def update(self, tensor: Tensor, turn: Turn) -> None:
        """Change a tensor's values, and its states, by `turn.grad_scale` times its gradient."""


@dataclass(frozen=True, kw_only=True)
class Elementwise(Rule):
    """A rule that needs of every value its gradient and its own states alone."""

    STATES: ClassVar[tuple[str, ...]] = ()
    """Names of what it remembers of every value from step to step; each begins as zeros."""

    def state_sizes(self, shape: tuple[int, ...], role: str = MATRIX) -> dict[str, int]:
        held = sum(self.held_size(_size(part, as_matrix(shape))) for part in tiles(as_matrix(shape)))
        return dict.fromkeys(self.STATES, held)

    def update(self, tensor: Tensor, turn: Turn) -> None:
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
        """float32 elements that hold a state of so many values of a tile."""
        return size

    def unpacked(
        self, on: Device, held: Sequence[Array], size: int, key: tuple[int, ...]
    ) -> AbstractContextManager[Sequence[Array]]:
        """The states of `size` values as `change` takes them, from how they are held, here these themselves; what
        becomes of them inside is held at the end. `key`: of random numbers."""
        return nullcontext(held)

    @abstractmethod
    def change(self, on: Device, values: Array, gradient: Array, states: Sequence[Array], turn: Turn) -> None:
        """Change `values` and `states`, in the order of STATES, in place; all flat."""


def _size(rows: slice, shape: tuple[int, int]) -> int:
    return (rows.stop - rows.start) * shape[1]
