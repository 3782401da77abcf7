"""Dropout of what LoRA reads: h = s / (1 - p) (M x) A^T, M zeros and ones (docs/derivations/dropout.md).

No mask is ever kept: an element's fate depends on seed, step, layer, projection, token and feature alone, so that it is
the same when a block is computed again, in whatever tiles and chunks, and however a step's sequences share batches.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from featherback.core.noise import Draw, Key, dropped_share
from featherback.engine.backend.protocol import Array
from featherback.nn.context import Context

_PURPOSE = crc32(b"dropout")
"""Begins the key: other random numbers of the same seed and step have nothing to do with these."""


class Mask(NamedTuple):
    """M of one projection for the tokens of a batch, or some of its columns."""

    rate: float
    key: Key
    first_token: int  # of the batch, among those of the step
    first_column: int = 0

    @classmethod
    def of(cls, rate: float, draw: Draw, layer: int, projection: str) -> Mask:
        """That of a stored projection for a batch of a step."""
        key = (_PURPOSE, draw.seed, draw.step, layer, crc32(projection.encode()))
        return cls(rate, key, draw.first_token)

    @property
    def gain(self) -> float:
        """1 / (1 - p)."""
        return 1 / (1 - dropped_share(self.rate))

    def inputs(self, first: int) -> Mask:
        """Of the columns from `first` on."""
        return self._replace(first_column=self.first_column + first)

    def drop(self, ctx: Context, x: Array, out: Array, *, accumulate: bool = False) -> None:
        """out (T, n) (+)= M x for the span's rows of x (T, n)."""
        corner = (self.first_token + ctx.span.start, self.first_column)
        ctx.ops.drop(x, self.key, self.rate, corner, out, accumulate=accumulate)
