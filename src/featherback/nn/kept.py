"""Intermediates of a block that a plan keeps from the forward to the backward pass. The others are computed again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from featherback.engine.backend.protocol import Array
from featherback.nn.context import Context
from featherback.nn.encodings import ENCODINGS, Encoding
from featherback.nn.span import Span

PLAIN = Encoding()


class Intermediate(NamedTuple):
    """A named intermediate of a block that its backward pass needs."""

    width: int  # columns, a row per token
    encodings: tuple[str, ...] = ("operand",)
    """Its possible encodings. The first is exact; another is used if the user asks for its precision."""
    by_head: bool = False
    """Whether it has a row per head and a column per token, instead of a row per token."""
    always: bool = False
    """Whether every plan keeps it, because it cannot be computed again from a rounded checkpoint."""

    def placed(
        self, tokens: int, operand: np.dtype[Any], encoding: str | None = None
    ) -> tuple[tuple[int, int], np.dtype[Any]]:
        """Return the shape and type of the array that stores it for this many tokens."""
        rows, columns = (self.width, tokens) if self.by_head else (tokens, self.width)
        elements, dtype = ENCODINGS[encoding or self.encodings[0]].row(columns, operand)
        return (rows, elements), dtype

    def encoded(self, precision: str) -> str | None:
        """Return the encoding for this precision, or None if there is none besides the exact one."""
        return next((name for name in self.encodings[1:] if ENCODINGS[name].precision == precision), None)


@dataclass(frozen=True)
class Kept:
    """The kept intermediates of one block, for all tokens of a batch, by name. `resources.kept` owns the arrays."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    by_head: Collection[str] = ()  # the names of the intermediates with a row per head
    prepared: Array | None = None  # what the adapter prepared for the layer (DoRA's c); kept under every plan
    place: int = 0  # index of the block among those with a backward pass: the slot of its checkpoint
    encodings: Mapping[str, Encoding] = field(default_factory=dict)  # by name, for those whose encoding is not exact

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def rows(self, name: str, span: Span, columns: slice = slice(None)) -> Array | None:
        """Return a view of a span's part of an intermediate, (T, width) or (heads, T), or of some of its columns.

        Returns None if it is not kept, or if its encoding does not allow direct computation: then use `store` and
        `load`.
        """
        array = self.arrays.get(name)
        if array is None or not self.encodings.get(name, PLAIN).in_place:
            return None
        return array[:, span.own] if name in self.by_head else array[span.own, columns]

    def store(self, ctx: Context, name: str, values: Array, columns: slice) -> None:
        """Store a span's values (T, n) of some columns of an intermediate."""
        encoding, stored = self._stored(name, ctx.span, columns)
        encoding.store(ctx.ops, values, stored)

    def load(self, ctx: Context, name: str, values: Array, columns: slice) -> None:
        """values (T, n) = the stored values of these columns."""
        encoding, stored = self._stored(name, ctx.span, columns)
        encoding.load(ctx.ops, stored, values)

    def has_slopes(self, name: str) -> bool:
        """Return whether an intermediate is kept in an encoding from which only slopes can be read, by `backward`."""
        return self.encodings.get(name, PLAIN).slopes_of is not None

    def backward(self, ctx: Context, name: str, da: Array, dz: Array, columns: slice) -> None:
        """dz (T, n), an operand = da (T, n), float32, times the slopes stored for these columns."""
        encoding, stored = self._stored(name, ctx.span, columns)
        encoding.backward(ctx.ops, da, stored, dz)

    def _stored(self, name: str, span: Span, columns: slice) -> tuple[Encoding, Array]:
        encoding = self.encodings.get(name, PLAIN)
        return encoding, self.arrays[name][span.own, encoding.part(columns.start, columns.stop)]


NOTHING = Kept()


class KeptState(NamedTuple):
    """The state of a branch that holds no arrays of its own: they are computed where they are used."""

    kept: Kept
    again: bool  # backward pass: kept intermediates are read, not written
