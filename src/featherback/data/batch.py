"""One training batch: whole sequences laid end to end, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from featherback.errors import FeatherbackError

IGNORE = -100
"""The label of a token that is not trained (the Hugging Face convention)."""

Int32 = npt.NDArray[np.int32]
Float64 = npt.NDArray[np.float64]
CHOSEN, REJECTED, MISMATCHED = 1, 2, 3
"""The kind of an answer: wanted, not wanted, or the answer to another prompt."""
ANCHOR, POSITIVE, NEGATIVE = 1, 2, 3
"""The kind of a text: one to compare, one that is alike, and one that is not. Further ones that are not count on."""
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class ExtraTargets:
    """Additional targets of rows that have several: the next tokens of two answers, or a teacher's likely tokens."""

    rows: Int32  # (E,)  indices of supervised tokens of the batch, ascending
    ids: Int32  # (E,)
    weights: Float64  # (E,)
    sequences: Int32 | None = None  # (E,)  the sequence of each, as in `Targets.sequences`; None: that of its row


@dataclass(frozen=True)
class Answers:
    """The sequences of a batch of preferences: sequence a is a prompt with one answer. Or texts to compare."""

    examples: Int32  # (A,)  the example that it belongs to
    parts: Int32  # (A,)  CHOSEN, REJECTED or MISMATCHED; of texts ANCHOR, POSITIVE or NEGATIVE
    reference: Float64  # (A,)  log-probability of the answer before training (nats); 0 if it is not needed

    @property
    def n_examples(self) -> int:
        """The number of examples, over which a preference loss is averaged."""
        return int(self.examples.max(initial=-1)) + 1


@dataclass(frozen=True)
class Rollouts:
    """Answers that the model has written itself: sequence a is a prompt with one of them."""

    logp: Float64  # (T,)  log-probability of each target when it was sampled (nats); 0 where there is no target
    advantages: Float64  # (A,)  how much better the answer is than others to the same prompt
    shares: Float64  # (A,)  the weight of each of its tokens in the loss

    def at(self, rows: npt.NDArray[np.intp] | slice) -> Rollouts:
        """Return the same for some of the tokens."""
        return replace(self, logp=self.logp[rows])


@dataclass(frozen=True)
class Targets:
    """The targets of the supervised rows in a range of a batch's tokens."""

    rows: npt.NDArray[np.intp]  # (n,)  relative to the first token of the range
    ids: Int32  # (n,)
    weights: Float64 | None  # (n,)  None: all are 1
    further_rows: npt.NDArray[np.intp]  # (E,)  indices into `rows`, ascending
    further_ids: Int32  # (E,)
    further_weights: Float64  # (E,)
    sequences: npt.NDArray[np.intp]  # (n,)  the original sequence of each row
    further_sequences: npt.NDArray[np.intp]  # (E,)
    answers: Answers | None = None  # of all original sequences, if the batch holds preferences
    rollouts: Rollouts | None = None  # of all original sequences, if the batch holds rollouts; `logp` is (n,)

    def apart(self) -> tuple[Targets, Targets]:
        """Return the first targets alone, and the further targets, of which each row's first is repeated in `ids`."""
        none = np.empty(0, np.int32)
        firsts = replace(
            self,
            further_rows=none.astype(np.intp),
            further_ids=none,
            further_weights=np.empty(0),
            further_sequences=none.astype(np.intp),
        )
        ids = self.ids.copy()  # a row without further targets keeps its own
        rows, places = np.unique(self.further_rows, return_index=True)
        ids[rows] = self.further_ids[places]
        return firsts, replace(self, ids=ids, weights=None)


class FileSequences(NamedTuple):
    """The sequences of a token file that a batch consists of."""

    file: int  # the checksum of a token file
    sequences: npt.NDArray[np.int64]  # (S,)  their numbers in it


@dataclass(frozen=True)
class Batch:
    """S sequences with T tokens in total. Targets are already shifted: `targets[t]` is what position t must predict."""

    tokens: Int32  # (T,)
    targets: Int32  # (T,)  IGNORE if not trained, as the last token of a sequence is, unless it has the text's label
    positions: Int32  # (T,)  start at 0 in each sequence
    cu_seqlens: Int32  # (S + 1,)  sequence s is tokens[cu_seqlens[s]:cu_seqlens[s + 1]]
    prefix: Int32 | None = None  # (S,)  the sequence that s continues, or -1 (data/prefixes.py); None: none are shared
    origin: Int32 | None = None  # (S,)  the index of s before prefixes were shared; None: unchanged
    weights: Float64 | None = None  # (T,)  weight of each target in the loss; None: all are 1
    further: ExtraTargets | None = None  # additional targets of some tokens
    answers: Answers | None = None  # for preferences: what each sequence is, by its index before prefixes were shared
    rollouts: Rollouts | None = None  # what each answer has earned, by its index before prefixes were shared
    source: FileSequences | None = None  # of all sequences, before prefixes were shared; None: not from a file
    rows: npt.NDArray[np.intp] | None = None  # (T,)  each token's index before prefixes were shared; None: unchanged

    @property
    def n_tokens(self) -> int:
        return int(self.tokens.size)

    @property
    def n_sequences(self) -> int:
        return int(self.cu_seqlens.size) - 1

    @property
    def longest(self) -> int:
        """The number of tokens of the longest sequence, with the prefix that it continues."""
        lengths = np.diff(self.cu_seqlens)
        before = 0 if self.prefix is None else np.where(self.prefix < 0, 0, lengths[self.prefix])
        return int((lengths + before).max())

    @property
    def n_targets(self) -> int:
        """The number of supervised positions, which weights this batch's mean loss in an average over batches."""
        return int(np.count_nonzero(self.targets != IGNORE))

    @property
    def n_terms(self) -> int:
        """The number over which the loss is averaged: pairs of preferences, answers of rollouts, or targets."""
        if self.rollouts is not None:
            return len(self.rollouts.shares)
        return self.n_targets if self.answers is None else self.answers.n_examples

    def divided(self, most: int) -> Iterator[tuple[int, Batch]]:
        """Yield parts of whole sequences, in order, with at most `most` tokens each, and the first token of each.

        A sequence that is longer is a part of its own. No prefixes are shared, and rows have one target.
        """
        first, stop = 0, len(self.cu_seqlens) - 1
        while first < stop:
            start = int(self.cu_seqlens[first])
            last = max(first + 1, int(np.searchsorted(self.cu_seqlens, start + most, side="right")) - 1)
            own, bounds = slice(start, int(self.cu_seqlens[last])), self.cu_seqlens[first : last + 1]
            answers, some = self.answers, slice(first, last)
            if answers is not None:
                answers = Answers(answers.examples[some], answers.parts[some], answers.reference[some])
            yield (
                start,
                Batch(
                    self.tokens[own],
                    self.targets[own],
                    self.positions[own],
                    (bounds - bounds[0]).astype(np.int32),
                    answers=answers,
                ),
            )
            first = last

    def supervised(self, own: slice | None = None) -> Targets:
        """The targets of the tokens in the slice `own`, or of all tokens if it is None."""
        own = own or slice(0, self.n_tokens)
        rows = np.flatnonzero(self.targets[own] != IGNORE)
        further = self.further or ExtraTargets(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0))
        mine = slice(*np.searchsorted(further.rows, (own.start, own.stop)))
        sequences = np.searchsorted(self.cu_seqlens, rows + own.start, side="right") - 1
        sequences = sequences if self.origin is None else self.origin[sequences].astype(np.intp)
        further_rows = np.searchsorted(rows, further.rows[mine] - own.start)
        return Targets(
            rows,
            self.targets[own][rows],
            None if self.weights is None else self.weights[own][rows],
            further_rows,
            further.ids[mine],
            further.weights[mine],
            sequences,
            sequences[further_rows] if further.sequences is None else further.sequences[mine].astype(np.intp),
            self.answers,
            None if self.rollouts is None else self.rollouts.at(rows + own.start),
        )

    @classmethod
    def from_sequences(
        cls, sequences: Sequence[npt.ArrayLike], labels: Sequence[npt.ArrayLike | None] | None = None
    ) -> Batch:
        """Join sequences of token ids into a batch.

        `labels` are aligned with the tokens: `labels[s][t]` belongs to `sequences[s][t]`, and IGNORE means "not
        trained". The shift by one happens here. None, for all labels or for one sequence, trains every next token.
        """
        if len(sequences) == 0:
            raise FeatherbackError("A batch needs at least one sequence of tokens.")
        if labels is not None and len(labels) != len(sequences):
            raise FeatherbackError(f"There are {len(sequences)} token sequences, but {len(labels)} label sequences.")
        rows = [_ids(sequence, f"Sequence {s}") for s, sequence in enumerate(sequences)]
        cu_seqlens = np.zeros(len(rows) + 1, np.int32)
        np.cumsum([row.size for row in rows], out=cu_seqlens[1:])
        tokens = np.concatenate(rows)
        targets = np.full(tokens.size, IGNORE, np.int32)
        positions = np.empty(tokens.size, np.int32)
        for s, row in enumerate(rows):
            if row.min() < 0:
                raise FeatherbackError(f"Sequence {s} contains the token id {row.min()}; token ids must be 0 or more.")
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
    except ValueError:  # nested lists of different lengths
        raise FeatherbackError(f"{name} must be a list of integers, one per token.") from None
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        what = f"an array of shape {array.shape} and type {array.dtype}"
        raise FeatherbackError(f"{name} must be a non-empty list of integers, one per token, not {what}.")
    if array.min() < _INT32.min or array.max() > _INT32.max:  # would wrap around to another id
        raise FeatherbackError(f"{name} contains a number that does not fit in 32 bits, so it is not a token id.")
    return array.astype(np.int32, copy=False)
