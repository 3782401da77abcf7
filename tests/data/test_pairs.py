"""Pairs as tokens: the layouts of an example, and the batches made of them."""

from __future__ import annotations

import numpy as np
import pytest

from featherback.data.batch import CHOSEN, IGNORE, REJECTED, Batch
from featherback.data.pairs import Answer, count_targets, joined, longest_of, pair_batch, prompts_of
from featherback.data.prefixes import share_prefixes


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def pair(prompt: np.ndarray, chosen: np.ndarray, rejected: np.ndarray, share: bool) -> tuple[np.ndarray, np.ndarray]:
    answers = []
    for part, answer in ((CHOSEN, chosen), (REJECTED, rejected)):
        supervised = np.arange(prompt.size + answer.size) >= prompt.size
        supervised[prompt.size + 1 : prompt.size + 2] = part == CHOSEN
        answers.append(Answer(part, np.concatenate([prompt, answer]), supervised))
    return joined(answers, share)


PROMPT, GOOD, BAD = ints(1, 2, 3), ints(4, 5), ints(6, 7, 8)


def test_the_prompt_is_stored_once() -> None:
    tokens, marks = pair(PROMPT, GOOD, BAD, share=True)
    assert tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert marks.tolist() == [0, 0, 0, 3, 3, 5, 4, 5]
    assert prompts_of(marks) == [(slice(0, 3), [(CHOSEN, slice(3, 5)), (REJECTED, slice(5, 8))])]
    assert (count_targets(marks), longest_of(marks)) == (4, 6)


def test_the_prompt_is_stored_twice() -> None:
    tokens, marks = pair(PROMPT, GOOD, BAD, share=False)
    assert tokens.tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 8]
    assert [answers for _, answers in prompts_of(marks)] == [[(CHOSEN, slice(3, 5))], [(REJECTED, slice(8, 11))]]
    assert (count_targets(marks), longest_of(marks)) == (4, 6)


@pytest.mark.parametrize("share", [True, False])
def test_answers_without_a_prompt(share: bool) -> None:
    """Nothing predicts their first token."""
    tokens, marks = pair(ints(), GOOD, BAD, share)
    assert (count_targets(marks), longest_of(marks)) == (2, 3)
    batch = pair_batch([(tokens, marks)])
    assert batch.prefix is None
    assert batch.cu_seqlens.tolist() == [0, 2, 5]
    assert batch.targets.tolist() == [5, IGNORE, IGNORE, 8, IGNORE]


def test_a_packed_batch() -> None:
    """The last row of a prompt predicts both answers. Positions restart; both answers continue the prompt."""
    batch = pair_batch([pair(PROMPT, GOOD, BAD, share=True)] * 2, np.arange(4.0))
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 3, 4, 5] * 2
    assert batch.prefix is not None
    assert batch.prefix.tolist() == [-1, 0, 0, -1, 3, 3]
    assert batch.targets.tolist() == [IGNORE, IGNORE, 4, 5, IGNORE, IGNORE, 8, IGNORE] * 2
    assert batch.longest == 6
    targets = batch.supervised()
    assert targets.sequences.tolist() == [0, 0, 1, 2, 2, 3]
    assert targets.further_sequences.tolist() == [1, 3]
    assert targets.further_ids.tolist() == [6, 6]
    assert targets.rows[targets.further_rows].tolist() == [2, 10]
    assert targets.answers is not None
    assert targets.answers.examples.tolist() == [0, 0, 1, 1]
    assert targets.answers.parts.tolist() == [CHOSEN, REJECTED] * 2
    assert (batch.n_targets, batch.n_terms) == (6, 2)


def test_a_batch_of_two_sequences_per_pair() -> None:
    batch = pair_batch([pair(PROMPT, GOOD, BAD, share=False)])
    assert batch.prefix is None
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]
    assert batch.supervised().sequences.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("share", [True, False])
def test_targets_of_prompts(share: bool) -> None:
    """ORPO trains the chosen answer with its prompt. Weights tell the prompt's targets from the answer's."""
    batch = pair_batch([pair(PROMPT, GOOD, BAD, share)], with_prompts=True)
    targets = batch.supervised()
    assert targets.weights is not None
    mine = targets.sequences == 0
    assert targets.ids[mine].tolist() == [2, 3, 4, 5]
    assert targets.weights[mine].tolist() == [0, 0, 1, 1]
    assert targets.weights[~mine].tolist() == [1] * int((~mine).sum())


def test_prompts_that_a_batch_finds_equal() -> None:
    """Sharing them changes the order of tokens, but not what belongs to which answer."""
    prompt = np.arange(20, dtype=np.int32)
    plain = pair_batch([pair(prompt, GOOD, BAD, share=False)] * 2, np.arange(4.0))
    shared = share_prefixes(plain)
    assert shared.n_tokens < plain.n_tokens

    def told(batch: Batch) -> list[tuple[int, ...]]:
        targets = batch.supervised()
        return sorted(zip(targets.sequences.tolist(), batch.positions[targets.rows].tolist(), targets.ids.tolist()))

    assert told(shared) == told(plain)
    assert shared.answers is plain.answers
