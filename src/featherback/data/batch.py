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
Float64 = npt.NDArray[np.float64]
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Further:
    """Targets of rows that have more than one: the next tokens of two answers, or those a teacher deems likely."""

    rows: Int32  # (E,)  tokens of the batch, each supervised, in ascending order
    ids: Int32  # (E,)
    weights: Float64  # (E,)


@dataclass(frozen=True)
class Targets:
    """What the supervised rows among some tokens of a batch must predict."""

    rows: npt.NDArray[np.intp]  # (n,)  counted from the first of these tokens
    ids: Int32  # (n,)
    weights: Float64 | None  # (n,)  None: all are 1
    further_rows: npt.NDArray[np.intp]  # (E,)  indices of `rows`, in ascending order
    further_ids: Int32  # (E,)
    further_weights: Float64  # (E,)
    sequences: npt.NDArray[np.intp]  # (n,)  of which sequence of the batch each row is, as the batch was made


@dataclass(frozen=True)
class Batch:
    """S sequences of T tokens in all. `targets[t]` is what position t must predict, i.e. already shifted."""

    tokens: Int32  # (T,)
    targets: Int32  # (T,)  IGNORE where nothing is trained; always IGNORE at the last token of a sequence
    positions: Int32  # (T,)  counted from 0 in each sequence
    cu_seqlens: Int32  # (S + 1,)  sequence s is tokens[cu_seqlens[s]:cu_seqlens[s + 1]]
    prefix: Int32 | None = None  # (S,)  the sequence that s continues, or -1 (data/prefixes.py); None: all are whole
    origin: Int32 | None = None  # (S,)  the sequence that s was before prefixes were shared; None: s itself
    weights: Float64 | None = None  # (T,)  of each target in the loss; None: all are 1
    further: Further | None = None  # more targets of some tokens

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

    def supervised(self, own: slice | None = None) -> Targets:
        """What the tokens [start, stop) of `own` must predict; None: all tokens."""
        own = own or slice(0, self.n_tokens)
        rows = np.flatnonzero(self.targets[own] != IGNORE)
        further = self.further or Further(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0))
        mine = slice(*np.searchsorted(further.rows, (own.start, own.stop)))
        sequences = np.searchsorted(self.cu_seqlens, rows + own.start, side="right") - 1
        return Targets(
            rows,
            self.targets[own][rows],
            None if self.weights is None else self.weights[own][rows],
            np.searchsorted(rows, further.rows[mine] - own.start),
            further.ids[mine],
            further.weights[mine],
            sequences if self.origin is None else self.origin[sequences].astype(np.intp),
        )

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
