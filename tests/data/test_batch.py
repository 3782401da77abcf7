"""Batch: the shift by one inside each sequence, positions, boundaries."""

import numpy as np
import pytest

from featherback.data.batch import IGNORE, Batch
from featherback.errors import FeatherbackError


def test_shift_stays_inside_each_sequence():
    batch = Batch.from_sequences([[5, 6, 7], [8], [9, 10]])
    assert batch.tokens.tolist() == [5, 6, 7, 8, 9, 10]
    assert batch.targets.tolist() == [6, 7, IGNORE, IGNORE, 10, IGNORE]
    assert batch.positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert (batch.n_tokens, batch.n_sequences, batch.n_targets) == (6, 3, 3)
    assert all(a.dtype == np.int32 for a in (batch.tokens, batch.targets, batch.positions, batch.cu_seqlens))


def test_labels_are_aligned_with_tokens():
    batch = Batch.from_sequences([[1, 2, 3], [4, 5]], [[IGNORE, IGNORE, 3], None])
    assert batch.targets.tolist() == [IGNORE, 3, IGNORE, 5, IGNORE]


def test_numpy_input_is_not_changed():
    tokens = np.array([1, 2, 3], np.int32)
    labels = np.array([IGNORE, 2, IGNORE], np.int64)
    assert Batch.from_sequences([tokens], [labels]).targets.tolist() == [2, IGNORE, IGNORE]
    assert tokens.tolist() == [1, 2, 3]
    assert labels.tolist() == [IGNORE, 2, IGNORE]


@pytest.mark.parametrize(
    ("sequences", "labels", "word"),
    [
        ([], None, "at least one"),
        ([[]], None, "non-empty"),
        ([[1.5, 2.0]], None, "integers"),
        ([[[1, 2]]], None, "shape"),
        ([[1, -2]], None, "must be 0 or more"),
        ([[1, 2]], [[1]], "2 tokens but 1 labels"),
        ([[1, 2]], [[1, 2], [3]], "1 token sequences, but 2 label sequences"),
    ],
)
def test_bad_input(sequences, labels, word):
    with pytest.raises(FeatherbackError, match=word):
        Batch.from_sequences(sequences, labels)
