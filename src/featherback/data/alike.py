"""Texts to compare as tokens: an example is an anchor, a text that is alike, and perhaps texts that are not.

In a token file they are one sequence after the other, and each token's mark says which text it belongs to.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from featherback.data.batch import IGNORE, Answers, Batch
from featherback.data.token_file import TokenFile

Ids = NDArray[np.int32]
MOST_TEXTS = 100
"""Most texts of an example: a mark has seven bits for them."""


def joined(texts: Sequence[Ids]) -> tuple[Ids, NDArray[np.uint8]]:
    """Return tokens and marks of an example. The first text is the anchor."""
    marks = [np.full(len(ids), number << 1, np.uint8) for number, ids in enumerate(texts, 1)]
    return np.concatenate(texts).astype(np.int32), np.concatenate(marks)


def texts_in(tokens: Ids, marks: NDArray[np.uint8]) -> list[tuple[int, Ids]]:
    """Return the kind and the tokens of each text of an example: the inverse of `joined`."""
    bounds = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist(), len(marks)]
    return [(int(marks[start]) >> 1, tokens[start:stop]) for start, stop in pairwise(bounds)]


def text_batch(examples: Sequence[Sequence[tuple[int, Ids]]]) -> Batch:
    """Return examples, each the kinds and tokens of its texts, as one batch. A text's target is at its last token."""
    batch = Batch.from_sequences([ids for texts in examples for _, ids in texts])
    targets = np.full(batch.n_tokens, IGNORE, np.int32)
    targets[batch.cu_seqlens[1:] - 1] = 0
    numbers = [number for number, texts in enumerate(examples) for _ in texts]
    kinds = [kind for texts in examples for kind, _ in texts]
    answers = Answers(np.array(numbers, np.int32), np.array(kinds, np.int32), np.zeros(len(kinds)))
    return replace(batch, targets=targets, answers=answers)


class TextsFile(TokenFile):
    """Makes batches of examples."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.max_length = self.longest  # a text is a sequence of its own

    def n_terms(self, i: int) -> int:
        return 1

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        return text_batch([texts_in(self.seq(int(i))[0], self.marks(int(i))) for i in indices])
