"""Spans: tokens of a batch that pass through a block together, and the keys that their queries see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class Span:
    """Tokens [start, stop) of a batch. A query sees keys of its own sequence, among [first_key, stop)."""

    start: int
    stop: int
    first_key: int
    positions: Int32  # (T,), position of each token in its sequence
    cu_q: Int32  # (S + 1,): queries of sequence s are rows [cu_q[s], cu_q[s + 1]) of the span
    cu_k: Int32  # (S + 1,): keys of sequence s, counted from first_key
    lengths: Int32  # (S,): tokens of the whole sequences, including those in other spans and in prefixes
    prefix: Int32 | None = None  # (S,): the sequence that s continues, whose keys it also sees, or -1

    @property
    def tokens(self) -> int:
        """T."""
        return self.stop - self.start

    @property
    def own(self) -> slice:
        """The rows of its tokens in the batch."""
        return slice(self.start, self.stop)

    @property
    def seen(self) -> slice:
        """The rows of the keys that its queries may see."""
        return slice(self.first_key, self.stop)

    @property
    def sequences(self) -> Iterator[tuple[slice, int]]:
        """Yield the rows of each sequence in the span, and the number of tokens of the whole sequence."""
        for first, last, length in zip(self.cu_q, self.cu_q[1:], self.lengths):
            yield slice(int(first), int(last)), int(length)

    @classmethod
    def joined(cls, spans: Sequence[Span]) -> Span:
        """Return a span of several sequences, in which each of these spans continues its own. Keys are not rows of it:
        the sequences' carries know where they are.
        """
        cu = np.cumsum([0, *(span.tokens for span in spans)], dtype=np.int32)
        positions, lengths = (
            np.concatenate([getattr(span, name) for span in spans]) for name in ("positions", "lengths")
        )
        return cls(0, int(cu[-1]), 0, positions, cu, cu, lengths)

    @classmethod
    def following(cls, past: int, count: int, length: int) -> Span:
        """Return the span of a decoding step: `count` tokens after the first `past` of a sequence of `length`."""
        positions = np.arange(past, past + count, dtype=np.int32)
        cu_q, cu_k = np.array([0, count], np.int32), np.array([0, past + count], np.int32)
        return cls(past, past + count, 0, positions, cu_q, cu_k, np.array([length], np.int32))


def spans(cu_seqlens: Int32, positions: Int32, size: int, prefix: Int32 | None = None) -> Iterator[Span]:
    """Split a batch into spans of at most `size` tokens, in order.

    `cu_seqlens` (S + 1,): sequence s is tokens [cu_seqlens[s], cu_seqlens[s + 1]). `positions` (T,): each token's
    position. `prefix` (S,): the sequence that each one continues, or -1; None if there are none.
    """
    whole = np.diff(cu_seqlens).astype(np.int32)
    if prefix is not None:
        whole = whole + np.where(prefix < 0, np.int32(0), whole[prefix])
    total = int(cu_seqlens[-1])
    for start in range(0, total, size):
        stop = min(total, start + size)
        first = int(np.searchsorted(cu_seqlens, start, side="right")) - 1  # the sequence of the first token
        last = int(np.searchsorted(cu_seqlens, stop, side="left"))  # one past the sequence of the last token
        before = None
        if prefix is not None:
            first = int(prefix[first]) if prefix[first] >= 0 else first
            before = np.where(prefix[first:last] < 0, -1, prefix[first:last] - first).astype(np.int32)
        bounds = cu_seqlens[first : last + 1]
        first_key = int(bounds[0])
        cu_q = (np.clip(bounds, start, stop) - start).astype(np.int32)
        cu_k = (np.minimum(bounds, stop) - first_key).astype(np.int32)
        yield Span(start, stop, first_key, positions[start:stop], cu_q, cu_k, whole[first:last], before)


def pieces(stop: int, step: int, start: int = 0) -> list[tuple[int, int]]:
    """Return ranges [first, last) of at most `step` that cover [start, stop)."""
    return [(first, min(stop, first + step)) for first in range(start, stop, step)]
