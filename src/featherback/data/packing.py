"""Group sequences into batches: deterministic in (seed, epoch), resumable at any batch, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from featherback.core.noise import splitmix
from featherback.data.batch import Batch
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError

Indices = npt.NDArray[np.int64]
_WINDOW = 4096  # sequences whose order and lengths are computed at once


@dataclass(frozen=True)
class Batching:
    """How to fill a batch with whole sequences, in order and without padding.

    With `examples`, a batch holds that many sequences of any length. Otherwise it is packed: it holds as many sequences
    as fit into `tokens` tokens (None: seq_len), and at least one.
    """

    seq_len: int  # most tokens in a sequence
    tokens: int | None = None
    examples: int | None = None

    @property
    def full(self) -> int:
        """The most tokens that a batch can have."""
        if self.examples is not None:
            return self.examples * self.seq_len
        return max(self.tokens or 0, self.seq_len)

    def takes(self, sequences: int, tokens: int, more: int) -> bool:
        """Whether a batch of `sequences` sequences and `tokens` tokens has room for a sequence of `more` tokens."""
        return tokens + more <= self.full if self.examples is None else sequences < self.examples


def batches(
    token_file: TokenFile, batching: Batching, seed: int = 0, epoch: int = 0, start: int = 0, shuffle: bool = True
) -> Iterator[Batch]:
    """Yield the batches of one epoch from batch `start` on. An epoch uses each sequence once, shuffled by default."""
    for indices in islice(rows(token_file, batching, seed, epoch, shuffle), start, None):
        yield token_file.batch(indices)


def count_batches(
    token_file: TokenFile, batching: Batching, seed: int = 0, epoch: int = 0, shuffle: bool = True
) -> int:
    """Count the batches of an epoch. With packing, the number differs slightly between epochs."""
    return sum(1 for _ in rows(token_file, batching, seed, epoch, shuffle))


def rows(
    token_file: TokenFile, batching: Batching, seed: int = 0, epoch: int = 0, shuffle: bool = True
) -> Iterator[Indices]:
    """Yield the sequence indices of each batch of an epoch. Only the sequences' lengths are read."""
    seq_len = batching.seq_len
    if batching.full < 1:
        raise FeatherbackError(f"A batch must hold at least 1 token, not {batching.full}.")
    if token_file.max_length > seq_len:
        raise FeatherbackError(
            f"{token_file.path} contains a sequence of {token_file.max_length} tokens, but the sequence length is "
            f"{seq_len}. Prepare the data again with this sequence length."
        )
    row: list[int] = []
    used = 0
    n = len(token_file)
    for first in range(0, n, _WINDOW):
        places = np.arange(first, min(first + _WINDOW, n), dtype=np.int64)
        order = permute(places, n, seed, epoch) if shuffle else places
        for i, length in zip(order.tolist(), token_file.lengths(order).tolist(), strict=True):
            if not batching.takes(len(row), used, length):
                yield np.array(row, np.int64)
                row, used = [], 0
            row.append(i)
            used += length
    if row:
        yield np.array(row, np.int64)


def permute(places: Indices, n: int, seed: int, epoch: int) -> Indices:
    """Map `places` by a pseudo-random permutation of range(n) with the key (seed, epoch).

    This is a Feistel network with cycle walking. It needs no table of n entries (24 MB for 3 million sequences), and
    does not depend on a library's random numbers, so a run resumes with the same order after an upgrade.
    """
    half = np.uint64(max(1, (max(n - 1, 1).bit_length() + 1) // 2))  # bits per half; 4^half >= n
    mask = np.uint64((1 << int(half)) - 1)
    key = splitmix(splitmix(np.uint64(seed & (2**64 - 1))) ^ np.uint64(epoch & (2**64 - 1)))
    keys = [splitmix(key + np.uint64(r)) for r in range(8)]  # eight rounds: even in tiny domains
    out = places.astype(np.uint64)
    walking = np.ones(out.shape, bool)
    while walking.any():  # values outside range(n) are permuted again until they are inside
        x = out[walking]
        left, right = x >> half, x & mask
        for k in keys:
            left, right = right, left ^ (splitmix(right ^ k) >> np.uint64(17)) & mask
        out[walking] = left << half | right
        walking = out >= np.uint64(n)
    return out.astype(np.int64)
