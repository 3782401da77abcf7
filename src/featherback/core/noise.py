"""Random numbers that depend on a key and a position alone.

A few lines instead of `numpy.random`, which would cost the training process 6.6 MB of resident memory; and the numbers
of a layer, an epoch or a step can be drawn in any order, without a generator's state to save.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 13
"""Words of bits at a time."""
_LANES = 2
"""Numbers of 16 bits in a word of 32."""

Key = tuple[int, ...]
"""What random numbers depend on."""


class Draw(NamedTuple):
    """Random numbers of training, those of stochastic methods and of dropout, depend on these alone."""

    seed: int = 0
    step: int = 0  # of the optimiser
    first_token: int = 0  # of the batch, among those of the step


UInt64 = NDArray[np.uint64]
Float32 = NDArray[np.float32]


def splitmix(x: UInt64 | np.uint64) -> UInt64:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): a bijection that looks random."""
    z = np.atleast_1d(np.asarray(x, np.uint64)) + np.uint64(0x9E3779B97F4A7C15)  # arrays wrap around silently
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def bits(key: Key, n: int, first: int = 0) -> UInt64:
    """n words of 64 random bits, those from number `first` on; another key gives independent ones."""
    state = 0
    for part in key:  # splitmix, in Python's integers: NumPy takes ten times as long for one
        z = ((state ^ part & (2**64 - 1)) + 0x9E3779B97F4A7C15) & (2**64 - 1)
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
        z = (z ^ z >> 27) * 0x94D049BB133111EB & (2**64 - 1)
        state = z ^ z >> 31
    counters = np.arange(first, first + n, dtype=np.uint64)
    counters *= np.uint64(0x9E3779B97F4A7C15)
    counters += np.uint64(state)
    return splitmix(counters)


def numbers(key: Key, rows: range, columns: range) -> NDArray[np.uint16]:
    """Random numbers of 16 bits for the places of an endless matrix: cheaper than `bits`, and good enough to choose by.

    A row begins at a state of its own; its words of 32 bits, two numbers each, are finalised by lowbias32 (Wellons and
    others, hash-prospector, 2018 to 2022), which vector units multiply.
    """
    first, last = columns.start // _LANES, -(-columns.stop // _LANES)
    z = np.arange(first, last, dtype=np.uint32)
    z *= np.uint32(0x9E3779B9)
    z = z + row_states(key, rows)[:, None]
    shifted = np.empty_like(z)
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97), (15, 1)):
        z ^= np.right_shift(z, np.uint32(shift), out=shifted)
        if factor != 1:
            z *= np.uint32(factor)
    lanes = z.astype("<u4", copy=False).view("<u2")
    return lanes[:, columns.start - first * _LANES :][:, : len(columns)]


def row_states(key: Key, rows: range) -> NDArray[np.uint32]:
    """Where the `numbers` of each row begin."""
    return (bits(key, len(rows), rows.start) >> np.uint64(32)).astype(np.uint32)


def uniform(key: Key, n: int) -> Float32:
    """n numbers in [0, 1)."""
    return (bits(key, n) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def normal(key: Key, n: int) -> Float32:
    """n standard normal numbers."""
    out = np.empty(n, np.float32)
    fill_normal(key, out)
    return out


def fill_normal(key: Key, out: Float32) -> None:
    """Standard normal numbers into `out` (n,)."""
    for part, values in _normal_pieces(key, out.size):
        out[part] = values


def add_normal(key: Key, factor: float, out: Float32, *, weights: Float32 | None = None) -> None:
    """out (n,) += factor * `normal(key, n)`, times `weights` (n,) if given, without room for all of those."""
    for part, values in _normal_pieces(key, out.size):
        values *= np.float32(factor)
        out[part] += values if weights is None else values * weights[part]


def _normal_pieces(key: Key, n: int) -> Iterator[tuple[slice, Float32]]:
    """n standard normal numbers (Box and Muller, 1958), piece by piece; a word of bits makes two, half of n apart."""
    half = -(-n // 2)
    for first in range(0, half, PIECE):
        words = bits(key, min(PIECE, half - first), first)
        radius = ((words >> np.uint64(40)).astype(np.float32) + np.float32(1)) * np.float32(2.0**-24)  # (0, 1]
        np.sqrt(-2 * np.log(radius), out=radius)
        angle = (words & np.uint64(0xFFFFFF)).astype(np.float32) * np.float32(2 * np.pi * 2.0**-24)
        count = words.size
        del words
        yield slice(first, first + count), radius * np.cos(angle)
        second = slice(half + first, min(n, half + first + count))  # one fewer at the end of an odd n
        yield second, (radius * np.sin(angle))[: second.stop - second.start]


@cache
def quantiles() -> Float32:
    """The normal distribution's values at the middles of 2^16 equal shares: its density summed up, and inverted.

    One of them, chosen by one of `numbers`, is a normal number: variance 0.99998, none beyond 4.33.
    """
    values = np.linspace(-6, 6, (1 << 12) + 1)
    density = np.exp(-(values**2) / 2)
    below = np.cumsum((density[1:] + density[:-1]) / 2)
    below /= below[-1]
    table = np.empty(1 << 16, np.float32)
    for first in range(0, table.size, PIECE):  # little at a time: what is held once stays the process's
        shares = (np.arange(first, first + PIECE) + 0.5) / table.size
        table[first : first + PIECE] = np.interp(shares, below, values[1:])
    return table


def dropped_share(rate: float) -> float:
    """The probability, a multiple of 2^-16, with which `kept` drops an element."""
    return _threshold(rate) / 2**16


def _threshold(rate: float) -> int:
    return min(round(rate * 2**16), 2**16 - 1)


def kept(
    key: Key, rate: float, corner: tuple[int, int], shape: tuple[int, int]
) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
    """Which elements dropout leaves of a rectangle of `shape` at `corner` (row, column) of a matrix: rows by rows.

    What becomes of an element depends on the key and its place in the matrix alone.
    """
    (top, left), (rows, cols) = corner, shape
    count, least = max(1, 4 * PIECE // cols), np.uint16(_threshold(rate))
    for first in range(0, rows, count):
        last = min(rows, first + count)
        drawn = numbers(key, range(top + first, top + last), range(left, left + cols))
        yield slice(first, last), drawn >= least
