"""Dropout of LoRA's input: h = s / (1 - p) (M x) A^T, where M (T, in) holds zeros and ones.

M is never stored. Each element depends only on seed, step, layer, projection, token and feature. So it is the same when
a block is computed again, for all tiles and chunks, and however the sequences of a step are grouped into batches. See
docs/derivations/dropout.md.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from featherback.core.noise import Draw, Key, dropped_share
from featherback.engine.backend.protocol import Array
from featherback.nn.context import Context

_PURPOSE = crc32(b"dropout")
"""First part of the key. It makes these numbers independent of others with the same seed and step."""


class Mask(NamedTuple):
    """M of one projection for the tokens of a batch, or for some of its columns. It holds no array."""

    rate: float
    key: Key
    first_token: int  # index of the batch's first token among the tokens of the step
    first_column: int = 0

    @classmethod
    def of(cls, rate: float, draw: Draw, layer: int, projection: str) -> Mask:
        """Return the mask of a stored projection for one batch of a step."""
        key = (_PURPOSE, draw.seed, draw.step, layer, crc32(projection.encode()))
        return cls(rate, key, draw.first_token)

    @property
    def gain(self) -> float:
        """1 / (1 - p)."""
        return 1 / (1 - dropped_share(self.rate))

    def inputs(self, first: int) -> Mask:
        """Return the mask for the columns from `first` on."""
        return self._replace(first_column=self.first_column + first)

    def drop(self, ctx: Context, x: Array, out: Array, *, accumulate: bool = False) -> None:
        """out (T, n) (+)= M x, for the span's rows of x (T, n)."""
        corner = (self.first_token + ctx.span.start, self.first_column)
        ctx.ops.drop(x, self.key, self.rate, corner, out, accumulate=accumulate)
