"""One training batch: whole sequences laid end to end, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from featherback.errors import FeatherbackError

IGNORE = -100
"""The label of a token that is not trained (the Hugging Face convention)."""

Int32 = npt.NDArray[np.int32]
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Batch:
    """S sequences of T tokens in all. `targets[t]` is what position t must predict, i.e. already shifted."""

    tokens: Int32  # (T,)
    targets: Int32  # (T,)  IGNORE where nothing is trained; always IGNORE at the last token of a sequence
    positions: Int32  # (T,)  counted from 0 in each sequence
    cu_seqlens: Int32  # (S + 1,)  sequence s is tokens[cu_seqlens[s]:cu_seqlens[s + 1]]
    prefix: Int32 | None = None  # (S,)  the sequence that s continues, or -1 (data/prefixes.py); None: all are whole

    @property
    def n_tokens(self) -> int:
        return int(self.tokens.size)

    @property
    def n_sequences(self) -> int:
        return int(self.cu_seqlens.size) - 1

    @property
    def n_targets(self) -> int:
        """Number of supervised positions: the weight of this batch's mean loss in an average over batches."""
        return int(np.count_nonzero(self.targets != IGNORE))

    @classmethod
    def from_sequences(
        cls, sequences: Sequence[npt.ArrayLike], labels: Sequence[npt.ArrayLike | None] | None = None
    ) -> Batch:
        """Lay sequences of token ids end to end.

        `labels` are aligned with the tokens (`labels[s][t]` belongs to `sequences[s][t]`, IGNORE = not
        trained); the shift by one happens here. None, for all or for one sequence, trains every next token.
        """
        if len(sequences) == 0:
            raise FeatherbackError("A batch needs at least one sequence of tokens.")
        if labels is not None and len(labels) != len(sequences):
            raise FeatherbackError(f"There are {len(sequences)} sequences of tokens but {len(labels)} of labels.")
        rows = [_ids(sequence, f"Sequence {s}") for s, sequence in enumerate(sequences)]
        cu_seqlens = np.zeros(len(rows) + 1, np.int32)
        np.cumsum([row.size for row in rows], out=cu_seqlens[1:])
        tokens = np.concatenate(rows)
        targets = np.full(tokens.size, IGNORE, np.int32)
        positions = np.empty(tokens.size, np.int32)
        for s, row in enumerate(rows):
            if row.min() < 0:
                raise FeatherbackError(f"Sequence {s} has the token id {row.min()}; ids are never negative.")
            start, end = cu_seqlens[s], cu_seqlens[s + 1]
            label = labels[s] if labels is not None else None
            aligned = row if label is None else _ids(label, f"Labels {s}")
            if aligned.size != row.size:
                raise FeatherbackError(f"Sequence {s} has {row.size} tokens but {aligned.size} labels.")
            targets[start : end - 1] = aligned[1:]
            positions[start:end] = np.arange(row.size, dtype=np.int32)
        return cls(tokens, targets, positions, cu_seqlens)


def _ids(values: npt.ArrayLike, name: str) -> Int32:
    try:
        array = np.asarray(values)
    except ValueError:  # lists of other lengths inside
        raise FeatherbackError(f"{name} must be a list of integers, one per token.") from None
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        what = f"an array of shape {array.shape} and type {array.dtype}"
        raise FeatherbackError(f"{name} must be a non-empty list of integers, one per token, not {what}.")
    if array.min() < _INT32.min or array.max() > _INT32.max:  # would come around as another id
        raise FeatherbackError(f"{name} holds a number that is no token id: it does not fit 32 bits.")
    return array.astype(np.int32, copy=False)
