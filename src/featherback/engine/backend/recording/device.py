"""A device that computes nothing and writes down everything: each operation, with the places of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from featherback.engine import backend
from featherback.engine.backend.arena import Stack, aligned
from featherback.engine.backend.protocol import Operations
from featherback.engine.backend.recording.arrays import Bound, Dense, Placed, Stored
from featherback.errors import FeatherbackError

T = TypeVar("T")
SIGNATURES = {
    name: inspect.signature(operation) for name, operation in vars(Operations).items() if not name.startswith("_")
}
REPLAYED = (
    "linear", "linear_backward", "lora_in", "lora_gradient", "rms_norm", "rms_norm_backward", "layer_norm",
    "layer_norm_backward", "rope", "attention", "attention_backward", "glu", "glu_backward", "cross_entropy_tile",
    "cross_entropy_finish", "cast", "fill", "scale", "take_rows", "put_rows", "zero_rows", "rotary_table",
)  # fmt: skip
"""The protocol's operations that a replay has. `csrc/program` has them in the same words."""
NUMBERS = ("rows", "targets", "positions", "cu_q", "cu_k", "ids")
"""Parameters that are integers of the batch."""


class Call(NamedTuple):
    """An operation, and its arguments in the order of the protocol."""

    name: str
    arguments: dict[str, Any]


class Calls:
    """What a pass has called so far, and the operations that add to it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def add(self, name: str, **arguments: Any) -> None:
        """Write down a call."""
        self.calls.append(Call(name, arguments))

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in SIGNATURES:
            raise AttributeError(name)
        if name not in REPLAYED:
            raise FeatherbackError(
                f"A step of this model or adapter uses the operation `{name}`, which a recording does not have. "
                "Dense models with LoRA can be recorded."
            )
        return partial(self._operation, name)

    def _operation(self, name: str, *positional: Any, **options: Any) -> None:
        bound = SIGNATURES[name].bind(None, *positional, **options)
        bound.apply_defaults()
        arguments = {key: value for key, value in bound.arguments.items() if key != "self"}
        arguments = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in arguments.items()}
        self.calls.append(Call(name, arguments))

    @staticmethod
    def dense(matrix: Placed) -> Dense:
        """Return an array as a weight."""
        return Dense(matrix)


class Space(Stack):
    """An arena of places. `high_water`: the most bytes that were in use."""

    def __init__(self, name: str) -> None:
        self.name, self.high_water = name, 0

    def take(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Placed:
        """Return the place of an array, valid until its frame ends."""
        kind, start = np.dtype(dtype), self._top
        self._top += aligned(tuple(int(extent) for extent in shape), kind)
        self.high_water = max(self.high_water, self._top)
        return Placed(self.name, start, tuple(shape), kind, int(shape[-1]))

    def release(self) -> None:
        """Do nothing."""


class Recording:
    """A device with the CPU's types. `rows`: the number of supervised rows of the batch that is recorded."""

    def __init__(self, compute: str, rows: int) -> None:
        like = backend.of(compute)
        self.operand, self.dense_type = like.operand, like.dense_type
        self.calls = Calls()
        self.ops: Any = self.calls
        self.prompts: Any = self.calls
        self._rows = rows

    def host(self, x: Placed, *, write: bool = False) -> AbstractContextManager[Any]:
        """Note the losses of the rows, the only numbers that a step reads."""
        if write:
            raise FeatherbackError("This objective computes weights of rows, so that its step cannot be recorded.")
        self.calls.add("loss", losses=x)
        return nullcontext(np.zeros(x.shape, x.dtype))

    @staticmethod
    def vector(values: Any) -> Any:
        return values

    @staticmethod
    def matrix(stored: Stored) -> Stored:
        return stored

    def each(self, tiles: Sequence[Any]) -> Sequence[Any]:
        """Return the tiles. The bounds of those that divide the supervised rows say so."""
        if tiles and isinstance(tiles[-1], tuple) and tiles[-1][1] == self._rows:
            return [(Bound(first), Bound(last)) for first, last in tiles]
        return tiles

    @staticmethod
    def most(found: Callable[[], T], bound: T) -> T:
        return bound
