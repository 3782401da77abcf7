"""Common prefixes are stored once, and every sequence can be restored."""

from __future__ import annotations

import numpy as np

from featherback.data.batch import IGNORE, Batch
from featherback.data.prefixes import LEAST, share_prefixes

A, B = list(range(100, 130)), list(range(100, 112)) + list(range(200, 230))  # they share 12 tokens


def chats(*parts: tuple[list[int], list[int]]) -> Batch:
    """Make a batch of prompts and answers in which only the answers are supervised."""
    labels = [[IGNORE] * len(prompt) + answer for prompt, answer in parts]
    return Batch.from_sequences([prompt + answer for prompt, answer in parts], labels)


def read_back(batch: Batch) -> list[tuple[list[int], list[int], list[int]]]:
    """Return tokens, targets and positions of every sequence, including its shared prefix."""
    prefix = np.full(batch.n_sequences, -1) if batch.prefix is None else batch.prefix
    places = [np.arange(a, b) for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:])]
    found = []
    for s in set(range(batch.n_sequences)) - set(prefix.tolist()):
        rows = places[s] if prefix[s] < 0 else np.concatenate([places[prefix[s]], places[s]])
        found.append((batch.tokens[rows].tolist(), batch.targets[rows].tolist(), batch.positions[rows].tolist()))
    return sorted(found)


def lengths(batch: Batch) -> list[int]:
    return np.diff(batch.cu_seqlens).tolist()


def test_a_system_prompt_is_shared() -> None:
    batch = chats((A, [1, 2]), ([*A, 9], [3]), ([7], [8, 9]), (A, [4, 5, 6]))
    shared = share_prefixes(batch)
    assert shared.prefix is not None
    assert lengths(shared) == [29, 3, 3, 4, 3]  # the prompt's last token predicts the answer's first
    assert shared.prefix.tolist() == [-1, 0, 0, 0, -1]
    assert read_back(shared) == read_back(batch)
    assert shared.n_targets == batch.n_targets


def test_two_prompts_that_begin_alike_are_shared_each_by_itself() -> None:
    batch = chats(*(([*prompt, i], [i]) for i in range(4) for prompt in (A, B)))
    shared = share_prefixes(batch)
    assert sorted(lengths(shared))[-2:] == [len(A), len(B)]
    assert read_back(shared) == read_back(batch)


def test_one_prompt_that_most_begin_with_is_shared_where_that_saves_more() -> None:
    batch = chats(([*A[:20], 1], [1]), ([*A[:20], 2], [2]), (A[:22], [3]), ([*A[:22], 5], [4]))
    shared = share_prefixes(batch)
    assert max(lengths(shared)) == 20
    assert read_back(shared) == read_back(batch)


def test_supervised_tokens_and_last_tokens_are_not_shared() -> None:
    batch = chats((A[:12], A[12:20]), (A[:20], [5]))
    assert lengths(share_prefixes(batch)) == [11, 9, 10]  # the token before an answer predicts it
    silent = Batch.from_sequences([A, A], [[IGNORE] * 30] * 2)
    assert lengths(share_prefixes(silent)) == [29, 1, 1]


def test_a_batch_without_a_prefix_worth_sharing_stays_what_it_is() -> None:
    few = A[: LEAST - 1]
    for batch in (
        chats(([*few, 1], [2]), ([*few, 3], [4])),
        Batch.from_sequences([A, A]),  # text, all of it supervised
        chats((A, [1])),
        chats((A, [1]), (B[12:], [1])),
    ):
        assert share_prefixes(batch) is batch


def test_many_random_batches_can_be_read_back() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        parts = []
        for _ in range(rng.integers(1, 9)):
            prompt = rng.integers(0, 2, 30).cumsum()[: rng.integers(1, 30)].tolist()
            prompt = (A if rng.random() < 0.5 else B)[: rng.integers(0, 30)] + prompt
            parts.append((prompt, rng.integers(0, 9, rng.integers(0, 4)).tolist()))
        batch = chats(*parts)
        shared = share_prefixes(batch)
        assert read_back(shared) == read_back(batch)
        assert shared.n_tokens <= batch.n_tokens - (LEAST if shared is not batch else 0)
