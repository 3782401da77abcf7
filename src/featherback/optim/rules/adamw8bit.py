"""AdamW with moments held in 8 bits, in blocks with a scale each (after Dettmers et al., ICLR 2022, arXiv 2110.02861).

The code is this project's own: within a block, level k of the first moment is +-(k / 127)^2 of its largest magnitude,
of the second (k / 255)^4, so that square roots and a comparison find it. Rounding is at random, each way with the
probability that keeps the mean: a second moment that decays by a thousandth a step would otherwise never leave its
level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from featherback.noise import PIECE, numbers
from featherback.optim.rule import Float32
from featherback.optim.rules.adamw import AdamW
from featherback.parameters.roles import MATRIX

BLOCK = 256
_PURPOSE = crc32(b"adamw8bit")
_HELD = BLOCK // 4 + 1
"""float32 elements that hold a block: its codes, and its scale."""
_PIECE = 4 * PIECE // BLOCK
"""Blocks that are rounded at once."""


class Code(NamedTuple):
    """Magnitudes from 0 to 1 in levels (k / most)^(2^roots)."""

    most: int
    roots: int
    least: int  # level of what is not zero; 0: it may vanish

    def value(self, k: Float32) -> Float32:
        """The magnitude of level k, which is overwritten."""
        k *= np.float32(1 / self.most)
        for _ in range(self.roots):
            k *= k
        return k

    def nearest(self, magnitudes: Float32, chance: Float32) -> Float32:
        """The level below or above each, as `chance` in (0, 1), which is overwritten, has it."""
        root = np.sqrt(magnitudes)
        for _ in range(1, self.roots):
            np.sqrt(root, out=root)
        root *= np.float32(self.most)
        k = np.floor(root, out=root)
        low, high = self.value(k.copy()), self.value(k + np.float32(1))
        high -= low
        chance *= high
        k += chance < np.subtract(magnitudes, low, out=low)
        return np.clip(k, self.least, self.most, out=k)


FIRST = Code(127, 1, least=0)  # the eighth bit is the sign
# A second moment that vanished beside a first that did not would make a step of any length.
SECOND = Code(255, 2, least=1)


@dataclass(frozen=True, kw_only=True)
class AdamW8bit(AdamW):
    __doc__ = AdamW.__doc__

    TEMPORARIES: ClassVar[int] = len(AdamW.STATES)

    def workspace(self, shape: tuple[int, ...], role: str = MATRIX) -> int:
        return 11 * min(_PIECE * BLOCK, math.prod(shape))

    @classmethod
    def held_size(cls, size: int) -> int:
        return -(-size // BLOCK) * _HELD

    def unpack(self, held: Sequence[Float32], size: int) -> list[Float32]:
        first, second = (np.empty(row.size // _HELD * BLOCK, np.float32) for row in held)
        for part, codes, scales in _pieces(held[0]):
            signed = FIRST.value((codes & 127).astype(np.float32))
            signed *= np.float32(1) - np.float32(2) * (codes >> 7)
            np.multiply(signed, scales, out=first.reshape(-1, BLOCK)[part])
        for part, codes, scales in _pieces(held[1]):
            np.multiply(SECOND.value(codes.astype(np.float32)), scales, out=second.reshape(-1, BLOCK)[part])
        return [first[:size], second[:size]]

    def pack(self, states: Sequence[Float32], held: Sequence[Float32], key: tuple[int, ...]) -> None:
        for number, (state, row, code) in enumerate(zip(states, held, (FIRST, SECOND), strict=True)):
            for part, codes, scales in _pieces(row):
                values = np.zeros(codes.shape, np.float32)
                there = state[part.start * BLOCK : part.stop * BLOCK]
                values.reshape(-1)[: there.size] = there
                magnitudes = np.abs(values)
                scales[...] = magnitudes.max(axis=1, keepdims=True)
                magnitudes /= np.where(scales > 0, scales, np.float32(1))
                drawn = numbers((_PURPOSE, *key, number), range(part.start, part.stop), range(BLOCK))
                chance = (drawn + np.float32(0.5)) * np.float32(2**-16)
                codes[...] = code.nearest(magnitudes, chance)
                if code is FIRST:
                    codes |= (values < 0).view(np.uint8) << 7


def _pieces(row: Float32) -> Iterator[tuple[slice, NDArray[np.uint8], Float32]]:
    """Blocks of a held state some at a time: which, their codes (n, BLOCK) and scales (n, 1), to be read or written."""
    blocks = row.size // _HELD
    codes = row[: blocks * BLOCK // 4].view(np.uint8).reshape(blocks, BLOCK)
    scales = row[blocks * BLOCK // 4 :].reshape(blocks, 1)
    for first in range(0, blocks, _PIECE):
        part = slice(first, min(blocks, first + _PIECE))
        yield part, codes[part], scales[part]


RULE = AdamW8bit
