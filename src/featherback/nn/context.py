"""The context of a pass through the blocks: device, scratch memory, tile sizes, the current span, rotary tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from featherback.core.noise import Draw
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array, Matrix, Operations, TokenStore
from featherback.nn.rope import Rotary
from featherback.nn.span import Span, pieces

T = TypeVar("T")


class Perturbations(Protocol):
    """Random perturbations that zeroth-order methods add to the model's own weights while a pass reads them."""

    def affects(self, part: str, layer: int | None) -> bool:
        """Return whether this weight is perturbed. `layer` is None for a weight outside the layers."""

    def add(self, part: str, layer: int | None, corner: tuple[int, int], out: Array) -> None:
        """out (n, m) += the perturbation of a rectangle of a weight. `corner` is its first (row, column)."""


def keep_mapped(matrix: Matrix) -> None:
    """Do nothing after a weight is used: it stays mapped."""


def ignore(name: str, first: int, last: int) -> None:
    """Read nothing ahead."""


@dataclass(frozen=True)
class Context(Device):
    """Operations, scratch memory, tile sizes, and the span of tokens that is being computed.

    `floats` and `operands` allocate arrays; the end of the innermost `frame` frees them.
    """

    compute: str  # "bf16", "int16" or "fp32"
    span: Span
    mlp_tile: int = 512  # columns of F at a time
    vocab_tile: int = 1024  # columns of V at a time
    keep_h: bool = False  # keep h (T, r) of attention's adapters from the recomputation to the gradients
    # MeBP: hold attention's probabilities and gate, up as plain autodiff does. Its scratch memory frees nothing.
    autodiff: bool = False
    decoding: bool = False  # no backward pass follows, so results need not equal those of training bit by bit
    few: bool = True  # in decoding: next tokens, not a part of a prompt
    release: Callable[[Matrix], None] = keep_mapped  # called after a weight, or rows of it, has been used
    release_expert: Callable[[Matrix], None] = keep_mapped  # the same for an expert, or a part of it
    expect: Callable[[str, int, int], None] = ignore  # (projection, rows [first, last)): will be read soon
    draw: Draw | None = None  # the source of random numbers in training, if the adapter draws any
    perturbations: Perturbations | None = None  # what zeroth-order methods add to the weights as they are read
    noted: TokenStore | None = None  # where a branch notes something for each chunk, until its backward pass
    tables: Mapping[Rotary, tuple[Array, Array]] | None = None  # cos and sin (T, dim / 2)

    @property
    def tokens(self) -> int:
        """T."""
        return self.span.tokens

    @property
    def ops(self) -> Operations:
        """The device's operations for these tokens."""
        return self.backend.ops if self.few else self.backend.prompts

    @property
    def operand(self) -> np.dtype[Any]:
        """The type that matrix products read: bf16 (as uint16) or float32."""
        return self.backend.operand

    def tiles(self, stop: int, step: int, start: int = 0) -> Iterable[tuple[int, int]]:
        """Return ranges [first, last) of at most `step` that cover [start, stop).

        A counting device gets only one of several ranges that cost the same.
        """
        return self.each(pieces(stop, step, start))

    def each(self, parts: Sequence[T]) -> Iterable[T]:
        """Return the parts of a loop. A counting device gets only the first, one between, and the last."""
        return parts if self.autodiff else self.backend.each(parts)  # MeBP holds every part's arrays, so all count

    def of_experts(self) -> Context:
        """Return the context for an expert, which is released after use."""
        return replace(self, release=self.release_expert)

    def operands(self, name: str, *shape: int) -> Array:
        """Allocate an uninitialised array of the operand type in the current frame."""
        return self.scratch.take(name, shape, self.operand)

    @contextmanager
    def at(self, span: Span, rotaries: tuple[Rotary, ...]) -> Iterator[Context]:
        """Yield a context for another span, with tables of cos and sin for `rotaries`. The end frees the tables."""
        with self.frame():
            tables = {rotary: self._table(rotary, span) for rotary in rotaries}
            yield replace(self, span=span, tables=tables)

    def table(self, rotary: Rotary) -> tuple[Array, Array]:
        """Return cos and sin (T, dim / 2) of the span's positions."""
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
