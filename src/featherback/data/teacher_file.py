"""A teacher's most likely tokens after each supervised token of a data set, in a file of `engine.host.token_rows`.

An entry takes 6 bytes, little-endian: the token's id in the upper 20 bits, and in the lower 28 bits - log p in units of
2^-23, which is as precise as the float32 logits that it comes from. A smaller p than e^-32 is stored as e^-32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.data.batch import IGNORE, Batch, ExtraTargets
from featherback.data.token_file import TokenFile
from featherback.engine.host.token_rows import RowNumbers, TokenRows, file_bytes
from featherback.errors import FeatherbackError

ENTRY = 6  # bytes
MOST_IDS = 1 << 20
_BITS, _UNIT = 28, 2.0**23
_KIND = "u1"
_WINDOW = 1 << 12


def encoded(ids: NDArray[np.int32], logp: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return entries (n, 6 k) of tokens `ids` (n, k) and their log-probabilities."""
    codes = np.clip(np.rint(-logp * _UNIT), 0, 2**_BITS - 1).astype("<u8")
    words = (ids.astype("<u8") << np.uint64(_BITS)) | codes
    n, k = ids.shape
    return np.ascontiguousarray(words.view(np.uint8).reshape(n, k, 8)[..., :ENTRY]).reshape(n, k * ENTRY)


def decoded(entries: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Invert `encoded`."""
    n, k = len(entries), entries.shape[1] // ENTRY
    words = np.zeros((n, k, 8), np.uint8)
    words[..., :ENTRY] = entries.reshape(n, k, ENTRY)
    found = words.view("<u8").reshape(n, k)
    return (found >> np.uint64(_BITS)).astype(np.int32), (found & np.uint64(2**_BITS - 1)) / -_UNIT


class TeacherRows:
    """The entries of all supervised tokens of a token file. Raises FeatherbackError if the file cannot be made.

    `key`: what the entries depend on. Entries with another key are replaced.
    """

    def __init__(self, path: Path, key: str, tokens: TokenFile, top_k: int) -> None:
        self.path, self.top_k, self._tokens = path, top_k, tokens
        sizes = len(tokens), tokens.n_targets, ENTRY * top_k
        try:
            self._rows = TokenRows(path, key, *sizes, _lengths(tokens), _KIND)
        except OSError as error:
            raise FeatherbackError(f"Cannot write {path}: {error.strerror}.") from error

    def has(self, sequences: NDArray[np.int64]) -> bool:
        """Return whether the entries of these sequences are there and intact."""
        return self._rows.intact(self._places(sequences))

    def save(self, sequences: NDArray[np.int64], ids: NDArray[np.int32], logp: NDArray[np.float64]) -> None:
        """Write the entries (n, k) of all supervised tokens of these sequences."""
        try:
            self._rows.save(self._places(sequences), encoded(ids, logp))
        except OSError as error:
            raise FeatherbackError(f"Cannot write {self.path}: {error.strerror}.") from error

    def load(self, sequences: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the tokens and log-probabilities (n, k). Raises FeatherbackError if some are missing or damaged."""
        places = self._places(sequences)
        if not self._rows.intact(places):
            raise FeatherbackError(
                f"{self.path} is incomplete or damaged. Delete it and resume the run, which computes what is missing."
            )
        entries = np.empty((len(places), ENTRY * self.top_k), np.uint8)
        self._rows.load(places, entries)
        return decoded(entries)

    def close(self) -> None:
        """Close the file. It stays on the disk."""
        self._rows.close()

    def _places(self, sequences: NDArray[np.int64]) -> RowNumbers:
        return self._rows.places(sequences.tolist(), [self._tokens.n_terms(int(i)) for i in sequences])


class TaughtFile(TokenFile):
    """A token file whose batches have the teacher's likely tokens as further targets."""

    teacher: TeacherRows

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        batch = super().batch(indices)
        ids, logp = self.teacher.load(indices)
        rows = np.flatnonzero(batch.targets != IGNORE).astype(np.int32)
        repeated = np.repeat(rows, self.teacher.top_k)
        return replace(batch, further=ExtraTargets(repeated, ids.reshape(-1), np.exp(logp).reshape(-1)))


def teacher_bytes(tokens: TokenFile, top_k: int) -> int:
    """Return the size of the file in bytes."""
    return file_bytes(len(tokens), tokens.n_targets, ENTRY * top_k, _KIND)


def _lengths(tokens: TokenFile) -> Iterator[NDArray[Any]]:
    """Yield the numbers of supervised tokens of the sequences, in order."""
    for first in range(0, len(tokens), _WINDOW):
        yield np.array([tokens.n_terms(i) for i in range(first, min(first + _WINDOW, len(tokens)))], np.int64)
