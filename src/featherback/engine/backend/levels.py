"""Blocks of numbers stored as 8-bit codes with one scale each.

The code is this project's own: level k of a block stands for its largest magnitude times (k / most)^(2^roots). So
square roots and a comparison find the level of a value. Rounding is stochastic: up or down with the probability that
preserves the mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.core.noise import PIECE, Key, numbers

BLOCK = 256
_HELD = BLOCK // 4 + 1
"""float32 elements that store one block: its codes and its scale."""
_PIECE = 4 * PIECE // BLOCK
"""Number of blocks that are processed at once."""

Float32 = NDArray[np.float32]


def held_size(size: int) -> int:
    """Return the number of float32 elements that store `size` values."""
    return -(-size // BLOCK) * _HELD


def room(size: int) -> int:
    """Return the number of float32 elements that `pack` and `unpack` need temporarily."""
    return 11 * min(_PIECE * BLOCK, size)


class Code(NamedTuple):
    """Magnitudes from 0 to 1 as levels (k / most)^(2^roots). If `most` is at most 127, the eighth bit is the sign."""

    most: int
    roots: int
    least: int  # lowest level of a value that is not zero; 0: it may be rounded to zero

    @property
    def signed(self) -> bool:
        return self.most < 128

    def value(self, k: Float32) -> Float32:
        """Return the magnitude of level k. Overwrites k."""
        k *= np.float32(1 / self.most)
        for _ in range(self.roots):
            k *= k
        return k

    def nearest(self, magnitudes: Float32, chance: Float32) -> Float32:
        """Return the level below or above each magnitude, as `chance` in (0, 1) decides. Overwrites `chance`."""
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


def unpack(held: Float32, code: Code, out: Float32) -> None:
    """out (n,) = the stored values."""
    for first, codes, scales in _pieces(held):
        values = code.value((codes & 127 if code.signed else codes).astype(np.float32))
        if code.signed:
            values *= np.float32(1) - np.float32(2) * (codes >> 7)
        there = out[first * BLOCK : first * BLOCK + values.size]
        if there.size == values.size:
            np.multiply(values, scales, out=there.reshape(values.shape))
        else:
            values *= scales
            there[...] = values.reshape(-1)[: there.size]


def pack(x: Float32, code: Code, key: Key, held: Float32) -> None:
    """Store x (n,) in `held`. The random numbers depend only on the key and the place."""
    for first, codes, scales in _pieces(held):
        values = np.zeros(codes.shape, np.float32)
        there = x[first * BLOCK : first * BLOCK + values.size]
        values.reshape(-1)[: there.size] = there
        magnitudes = np.abs(values)
        scales[...] = magnitudes.max(axis=1, keepdims=True)
        magnitudes /= np.where(scales > 0, scales, np.float32(1))
        drawn = numbers(key, range(first, first + len(codes)), range(BLOCK))
        chance = (drawn + np.float32(0.5)) * np.float32(2**-16)
        codes[...] = code.nearest(magnitudes, chance)
        if code.signed:
            codes |= (values < 0).view(np.uint8) << 7


def _pieces(held: Float32) -> Iterator[tuple[int, NDArray[np.uint8], Float32]]:
    """Yield some blocks at a time: index of the first, codes (n, BLOCK) and scales (n, 1), as writable views."""
    blocks = held.size // _HELD
    codes = held[: blocks * BLOCK // 4].view(np.uint8).reshape(blocks, BLOCK)
    scales = held[blocks * BLOCK // 4 :].reshape(blocks, 1)
    for first in range(0, blocks, _PIECE):
        yield first, codes[first : first + _PIECE], scales[first : first + _PIECE]
