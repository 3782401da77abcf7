"""Which sequences share a batch: deterministic in (seed, epoch), resumable at any batch, constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from featherback.core.noise import splitmix
from featherback.data.batch import IGNORE, Batch
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError

Indices = npt.NDArray[np.int64]
_WINDOW = 4096  # sequences whose order and lengths are looked up at once


@dataclass(frozen=True)
class Batching:
    """Which sequences make a batch: whole ones, in order, without padding.

    With `examples` a batch holds that many, whatever their lengths. Otherwise it is packed: it holds as many as fit
    into `tokens` tokens (None: seq_len), and at least one.
    """

    seq_len: int  # most tokens of a sequence
    tokens: int | None = None
    examples: int | None = None

    @property
    def full(self) -> int:
        """Most tokens of a batch."""
        if self.examples is not None:
            return self.examples * self.seq_len
        return max(self.tokens or 0, self.seq_len)

    def takes(self, sequences: int, tokens: int, more: int) -> bool:
        """Whether a batch of so many sequences and tokens also takes a sequence of `more` tokens."""
        return tokens + more <= self.full if self.examples is None else sequences < self.examples


def batches(
    token_file: TokenFile, batching: Batching, seed: int = 0, epoch: int = 0, start: int = 0, shuffle: bool = True
) -> Iterator[Batch]:
    """The batches of one epoch from batch `start` on: every sequence exactly once, shuffled unless `shuffle` is off."""
    for indices in islice(rows(token_file, batching, seed, epoch, shuffle), start, None):
        yield batch_of(token_file, indices)


def batch_of(token_file: TokenFile, indices: Indices) -> Batch:
    """The sequences named, as one batch."""
    sequences, labels = [], []
    for i in indices:
        tokens, supervised = token_file.seq(int(i))
        sequences.append(tokens)
        labels.append(np.where(supervised, tokens, np.int32(IGNORE)))
    return Batch.from_sequences(sequences, labels)


def count_batches(
    token_file: TokenFile, batching: Batching, seed: int = 0, epoch: int = 0, shuffle: bool = True
) -> int:
    """Number of batches of that epoch (it differs a little from epoch to epoch where they are packed)."""
    return sum(1 for _ in rows(token_file, batching, seed, epoch, shuffle))


def rows(
    token_file: TokenFile, batching: Batching, seed: int = 0, epoch: int = 0, shuffle: bool = True
) -> Iterator[Indices]:
    """The sequence indices of each batch of an epoch; only the sequences' lengths are read."""
    seq_len = batching.seq_len
    if batching.full < 1:
        raise FeatherbackError(f"A batch must hold at least 1 token, not {batching.full}.")
    if token_file.max_length > seq_len:
        raise FeatherbackError(
            f"{token_file.path} holds a sequence of {token_file.max_length} tokens, longer than the "
            f"sequence length {seq_len}: prepare the data again for this length."
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
    """Where a pseudo-random permutation of range(n), keyed by (seed, epoch), sends `places`.

    A Feistel network with cycle walking: no table of n entries is held (3 million sequences would be 24 MB),
    and the order depends on no library's random stream, so a run resumes alike after an upgrade.
    """
    half = np.uint64(max(1, (max(n - 1, 1).bit_length() + 1) // 2))  # bits of each half; 4^half >= n
    mask = np.uint64((1 << int(half)) - 1)
    key = splitmix(splitmix(np.uint64(seed & (2**64 - 1))) ^ np.uint64(epoch & (2**64 - 1)))
    keys = [splitmix(key + np.uint64(r)) for r in range(8)]  # eight rounds: even in tiny domains
    out = places.astype(np.uint64)
    walking = np.ones(out.shape, bool)
    while walking.any():  # values that left range(n) are sent on until they are back in it
        x = out[walking]
        left, right = x >> half, x & mask
        for k in keys:
            left, right = right, left ^ (splitmix(right ^ k) >> np.uint64(17)) & mask
        out[walking] = left << half | right
        walking = out >= np.uint64(n)
    return out.astype(np.int64)
