"""Random numbers that are a function of a key and a position.

`numpy.random` would cost the training process 6.6 MB of resident memory. Here the numbers of any layer, epoch or step
can be drawn in any order, and there is no generator state to save.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 13
"""Number of 64-bit words drawn at a time."""
_LANES = 2
"""16-bit numbers in a 32-bit word."""

Key = tuple[int, ...]
"""The integers that determine a stream of random numbers."""


class Draw(NamedTuple):
    """All that the random numbers of training depend on, for stochastic methods and dropout alike."""

    seed: int = 0
    step: int = 0  # the optimiser step
    first_token: int = 0  # index of the batch's first token among the tokens of the step


UInt64 = NDArray[np.uint64]
Float32 = NDArray[np.float32]


def splitmix(x: UInt64 | np.uint64) -> UInt64:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): a bijection whose output looks random."""
    z = np.atleast_1d(np.asarray(x, np.uint64)) + np.uint64(0x9E3779B97F4A7C15)  # arrays wrap around silently
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def bits(key: Key, n: int, first: int = 0) -> UInt64:
    """Return n random 64-bit words, starting with number `first` of the key's stream. Keys are independent."""
    state = 0
    for part in key:  # splitmix in Python integers: NumPy takes ten times as long for a single value
        z = ((state ^ part & (2**64 - 1)) + 0x9E3779B97F4A7C15) & (2**64 - 1)
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
        z = (z ^ z >> 27) * 0x94D049BB133111EB & (2**64 - 1)
        state = z ^ z >> 31
    counters = np.arange(first, first + n, dtype=np.uint64)
    counters *= np.uint64(0x9E3779B97F4A7C15)
    counters += np.uint64(state)
    return splitmix(counters)


def numbers(key: Key, rows: range, columns: range) -> NDArray[np.uint16]:
    """Return uint16 random numbers for a rectangle (rows, columns) of an unbounded matrix.

    They are cheaper than `bits`, and random enough for selection. Each row starts from its own state. Its 32-bit words
    hold two numbers each and are finalised by lowbias32 (Wellons and others, hash-prospector, 2018 to 2022), whose
    multiplications are vectorised.
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
    """Return the state (rows,) from which each row of `numbers` starts."""
    return (bits(key, len(rows), rows.start) >> np.uint64(32)).astype(np.uint32)


def uniform(key: Key, n: int) -> Float32:
    """Return n uniform numbers in [0, 1)."""
    return (bits(key, n) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def normal(key: Key, n: int) -> Float32:
    """Return n standard normal numbers."""
    out = np.empty(n, np.float32)
    fill_normal(key, out)
    return out


def fill_normal(key: Key, out: Float32) -> None:
    """Fill `out` (n,) with standard normal numbers."""
    for part, values in _normal_pieces(key, out.size):
        out[part] = values


def add_normal(key: Key, factor: float, out: Float32, *, weights: Float32 | None = None) -> None:
    """out (n,) += factor * `normal(key, n)`, multiplied by `weights` (n,) if given, without an (n,) temporary."""
    for part, values in _normal_pieces(key, out.size):
        values *= np.float32(factor)
        out[part] += values if weights is None else values * weights[part]


def _normal_pieces(key: Key, n: int) -> Iterator[tuple[slice, Float32]]:
    """Yield n standard normal numbers (Box and Muller, 1958) in pieces.

    A word of bits gives two, n / 2 places apart.
    """
    half = -(-n // 2)
    for first in range(0, half, PIECE):
        words = bits(key, min(PIECE, half - first), first)
        radius = ((words >> np.uint64(40)).astype(np.float32) + np.float32(1)) * np.float32(2.0**-24)  # (0, 1]
        np.sqrt(-2 * np.log(radius), out=radius)
        angle = (words & np.uint64(0xFFFFFF)).astype(np.float32) * np.float32(2 * np.pi * 2.0**-24)
        count = words.size
        del words
        yield slice(first, first + count), radius * np.cos(angle)
        second = slice(half + first, min(n, half + first + count))  # one fewer at the end if n is odd
        yield second, (radius * np.sin(angle))[: second.stop - second.start]


@cache
def quantiles() -> Float32:
    """Return the normal distribution's values at the midpoints of 2^16 equal probability shares, (65536,).

    They come from inverting the summed density. Indexing the table with `numbers` gives normal numbers: variance
    0.99998, largest magnitude 4.33.
    """
    values = np.linspace(-6, 6, (1 << 12) + 1)
    density = np.exp(-(values**2) / 2)
    below = np.cumsum((density[1:] + density[:-1]) / 2)
    below /= below[-1]
    table = np.empty(1 << 16, np.float32)
    for first in range(0, table.size, PIECE):  # in pieces: memory that is touched once stays with the process
        shares = (np.arange(first, first + PIECE) + 0.5) / table.size
        table[first : first + PIECE] = np.interp(shares, below, values[1:])
    return table


def dropped_share(rate: float) -> float:
    """Return the probability with which `kept` drops an element: `rate` rounded to a multiple of 2^-16."""
    return _threshold(rate) / 2**16


def _threshold(rate: float) -> int:
    return min(round(rate * 2**16), 2**16 - 1)


def kept(
    key: Key, rate: float, corner: tuple[int, int], shape: tuple[int, int]
) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
    """Yield which elements dropout keeps in a rectangle of a matrix, some rows at a time.

    The rectangle has `shape` and its first element at `corner` (row, column). Yields a slice of rows and their mask,
    True for kept. Whether an element is kept depends only on the key and on its place in the matrix.
    """
    (top, left), (rows, cols) = corner, shape
    count, least = max(1, 4 * PIECE // cols), np.uint16(_threshold(rate))
    for first in range(0, rows, count):
        last = min(rows, first + count)
        drawn = numbers(key, range(top + first, top + last), range(left, left + cols))
        yield slice(first, last), drawn >= least
