"""Random numbers that depend on a key and a position alone.

A few lines instead of `numpy.random`, which would cost the training process 6.6 MB of resident memory; and the numbers
of a layer, an epoch or a step can be drawn in any order, without a generator's state to save.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 13
"""Words of bits at a time."""

UInt64 = NDArray[np.uint64]
Float32 = NDArray[np.float32]


def splitmix(x: UInt64 | np.uint64) -> UInt64:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): a bijection that looks random."""
    z = np.atleast_1d(np.asarray(x, np.uint64)) + np.uint64(0x9E3779B97F4A7C15)  # arrays wrap around silently
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def bits(key: tuple[int, ...], n: int, first: int = 0) -> UInt64:
    """n words of 64 random bits, those from number `first` on; another key gives independent ones."""
    state = np.zeros(1, np.uint64)
    for part in key:
        state = splitmix(state ^ np.uint64(part & (2**64 - 1)))
    counters = np.arange(first, first + n, dtype=np.uint64)
    counters *= np.uint64(0x9E3779B97F4A7C15)
    counters += state
    return splitmix(counters)


def uniform(key: tuple[int, ...], n: int) -> Float32:
    """n numbers in [0, 1)."""
    return (bits(key, n) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def normal(key: tuple[int, ...], n: int) -> Float32:
    """n standard normal numbers."""
    out = np.empty(n, np.float32)
    fill_normal(key, out)
    return out


def fill_normal(key: tuple[int, ...], out: Float32) -> None:
    """Standard normal numbers into `out` (n,)."""
    for part, values in _normal_pieces(key, out.size):
        out[part] = values


def add_normal(key: tuple[int, ...], factor: float, out: Float32) -> None:
    """out (n,) += factor * `normal(key, n)`, without room for all of those."""
    for part, values in _normal_pieces(key, out.size):
        out[part] += values * np.float32(factor)


def _normal_pieces(key: tuple[int, ...], n: int) -> Iterator[tuple[slice, Float32]]:
    """n standard normal numbers (Box and Muller, 1958), piece by piece; a word of bits makes two, half of n apart."""
    half = -(-n // 2)
    for first in range(0, half, PIECE):
        words = bits(key, min(PIECE, half - first), first)
        radius = ((words >> np.uint64(40)).astype(np.float32) + np.float32(1)) * np.float32(
            2.0**-24
        )  # (0, 1]
        np.sqrt(-2 * np.log(radius), out=radius)
        angle = (words & np.uint64(0xFFFFFF)).astype(np.float32) * np.float32(2 * np.pi * 2.0**-24)
        count = words.size
        del words
        yield slice(first, first + count), radius * np.cos(angle)
        second = slice(half + first, min(n, half + first + count))  # one fewer at the end of an odd n
        yield second, (radius * np.sin(angle))[: second.stop - second.start]
