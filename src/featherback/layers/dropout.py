"""Dropout of what LoRA reads: h = s / (1 - p) (M x) A^T, M zeros and ones (docs/derivations/dropout.md).

No mask is ever kept: an element's fate depends on seed, step, layer, projection, token and feature alone, so that it is
the same when a block is computed again, in whatever tiles and chunks, and however a step's sequences share batches.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from featherback.noise import dropped_share

_PURPOSE = crc32(b"dropout")
"""Begins the key: other random numbers of the same seed and step have nothing to do with these."""


class Mask(NamedTuple):
    """M of one projection for the tokens of a batch, or some of its columns."""

    rate: float
    key: tuple[int, ...]
    first_token: int  # of the batch, among those of the step
    first_column: int = 0

    @property
    def gain(self) -> float:
        """1 / (1 - p)."""
        return 1 / (1 - dropped_share(self.rate))

    def inputs(self, first: int) -> Mask:
        """Of the columns from `first` on."""
        return self._replace(first_column=self.first_column + first)


class Dropout(NamedTuple):
    """What the masks of one batch have in common."""

    rate: float
    seed: int
    step: int  # of the optimiser
    first_token: int  # of the batch, among those of the step

    def mask(self, layer: int, projection: str) -> Mask:
        """That of a stored projection."""
        key = (_PURPOSE, self.seed, self.step, layer, crc32(projection.encode()))
        return Mask(self.rate, key, self.first_token)
