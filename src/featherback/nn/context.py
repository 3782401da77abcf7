"""The context of a pass through the blocks: device, scratch memory, tile sizes, the current span, rotary tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from featherback.core.noise import Draw
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array, Matrix
from featherback.nn.rope import Rotary
from featherback.nn.span import Span, pieces


class Moves(Protocol):
    """Random values that zeroth-order methods add to the model's own weights while a pass reads them."""

    def moves(self, part: str, layer: int | None) -> bool:
        """Whether anything is added to this weight; of one outside the layers, `layer` is None."""

    def add(self, part: str, layer: int | None, corner: tuple[int, int], out: Array) -> None:
        """out (n, m) += what is added to that rectangle of a weight, which begins at `corner` (row, column)."""


def keep_mapped(matrix: Matrix) -> None:
    """Do nothing with a used weight: it stays mapped."""


@dataclass(frozen=True)
class Context(Device):
    """Operations, scratch memory, tile sizes, and the span of tokens that is computed.

    `floats` and `operands` take arrays; the end of the innermost `frame` frees them.
    """

    compute: str  # "bf16", "int16" or "fp32"
    span: Span
    mlp_tile: int = 512  # columns of F at a time
    vocab_tile: int = 1024  # columns of V at a time
    keep_h: bool = False  # keep h (T, r) of attention's adapters from the recomputation to their gradients
    # MeBP: hold attention's probabilities and gate, up as plain autodiff does. Its scratch memory frees nothing.
    autodiff: bool = False
    decoding: bool = False  # no backward pass follows, so results need not equal those of training to the last bit
    release: Callable[[Matrix], None] = keep_mapped  # called when a weight, or rows of it, has been used
    draw: Draw | None = None  # random numbers of training, where the adapter draws any
    moves: Moves | None = None  # what zeroth-order methods add to the weights as they are read
    tables: Mapping[Rotary, tuple[Array, Array]] | None = None  # cos and sin (T, dim / 2)

    @property
    def tokens(self) -> int:
        """T."""
        return self.span.tokens

    @property
    def operand(self) -> np.dtype[Any]:
        """The type that products read: bf16 (as uint16) or float32."""
        return self.backend.operand

    def tiles(self, stop: int, step: int, start: int = 0) -> Iterable[tuple[int, int]]:
        """Ranges [first, last) of at most `step` that cover [start, stop). A counting device leaves out equal ones."""
        ranges = pieces(stop, step, start)
        return ranges if self.autodiff else self.backend.each(ranges)  # MeBP holds every tile's arrays: all count

    def operands(self, name: str, *shape: int) -> Array:
        """An uninitialised array of the operand type, in the current frame."""
        return self.scratch.take(name, shape, self.operand)

    @contextmanager
    def at(self, span: Span, rotaries: tuple[Rotary, ...]) -> Iterator[Context]:
        """A context for another span, with cos and sin tables for `rotaries`, in a frame that the end frees."""
        with self.frame():
            tables = {rotary: self._table(rotary, span) for rotary in rotaries}
            yield replace(self, span=span, tables=tables)

    def table(self, rotary: Rotary) -> tuple[Array, Array]:
        """cos and sin (T, dim / 2) of the span's positions."""
        assert self.tables is not None
        return self.tables[rotary]

    def _table(self, rotary: Rotary, span: Span) -> tuple[Array, Array]:
        shape = (span.tokens, rotary.dim // 2)
        cos, sin = self.floats("rotary cos", *shape), self.floats("rotary sin", *shape)
        whole = [(slice(0, span.tokens), 0)]
        for rows, length in whole if rotary.beyond is None else span.sequences:
            frequencies = rotary.inverse_frequencies(length)
            self.ops.rotary_table(frequencies, span.positions[rows], cos[rows], sin[rows])
        if rotary.attention_factor != 1:
            self.ops.scale(cos, rotary.attention_factor)
            self.ops.scale(sin, rotary.attention_factor)
        return cos, sin
