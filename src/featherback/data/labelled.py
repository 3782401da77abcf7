"""Texts with a label: the label is the target of the text's last token, in a vocabulary of labels.

In a token file a text's label follows its last token, and is the only supervised one. Its number counts the labels of
the file in their order of appearance; the file's metadata have their names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from featherback.data.batch import IGNORE, Batch
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError, excerpt

Ids = npt.NDArray[np.int32]


class LabelledFile(TokenFile):
    """Makes batches of texts with their labels. `labels`: the names of all labels, in the order of their ids."""

    def __init__(self, path: str | os.PathLike[str], labels: Sequence[str]) -> None:
        super().__init__(path)
        self.max_length -= 1
        numbers = {name: number for number, name in enumerate(labels)}
        if strange := [name for name in labels_in(self) if name not in numbers]:
            raise FeatherbackError(
                f"The data have the label {excerpt(strange[0])}, which is not one of the labels that are trained: "
                f"{shown(labels)}."
            )
        self._numbers = np.array([numbers[name] for name in labels_in(self)], np.int32)

    def lengths(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return super().lengths(indices) - 1

    def batch(self, indices: npt.NDArray[np.int64]) -> Batch:
        texts = [self.seq(int(i))[0] for i in indices]
        labels = self._numbers[[int(each[-1]) for each in texts]]
        return replace(label_batch([each[:-1] for each in texts], labels), source=self._places(indices))


def label_batch(texts: Sequence[Ids], labels: npt.ArrayLike) -> Batch:
    """Return texts, each token ids (n,), and the numbers of their labels as one batch."""
    batch = Batch.from_sequences(texts)
    targets = np.full(batch.n_tokens, IGNORE, np.int32)
    targets[batch.cu_seqlens[1:] - 1] = labels
    return replace(batch, targets=targets)


def scored_answers(batch: Batch) -> Batch:
    """Return a batch of pairs in which the only targets are the last tokens of answers: the places of their scores."""
    owners = np.arange(batch.n_sequences) if batch.origin is None else batch.origin
    last = {int(owner): int(stop) - 1 for owner, stop in zip(owners, batch.cu_seqlens[1:])}  # prompts come first
    targets = np.full(batch.n_tokens, IGNORE, np.int32)
    targets[list(last.values())] = 0
    return replace(batch, targets=targets, weights=None, further=None)


def labels_in(file: TokenFile) -> list[str]:
    """Return the names of a file's labels, in the order of their numbers in the file."""
    names: Any = (file.whole or file).metadata.get("labels")
    return list(names) if isinstance(names, list) else []


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of labels in the order of their ids: numbers by value, names by alphabet."""
    numbers = all(name.removeprefix("-").isdecimal() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name) if numbers else 0, name)))


def shown(labels: Sequence[str], most: int = 6) -> str:
    """Return the first labels as a message lists them."""
    return ", ".join(map(excerpt, labels[:most])) + ", ..." * (len(labels) > most)
