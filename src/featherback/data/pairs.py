"""Preferences as tokens: a prompt with several answers, which are one sequence of a token file.

Each token has a mark: the part that it belongs to, PROMPT or a kind of answer (`batch.CHOSEN`, ...), and whether it is
supervised. A pair is stored as

    [prompt | chosen | rejected]              the prompt is computed once; both answers continue it
    [prompt | chosen | prompt | rejected]     for models that cannot share it: two sequences

In the first form, positions of the second answer restart behind the prompt, and it does not see the first answer. The
prompt's last row predicts the first token of both, so it has two targets.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from featherback.data.batch import CHOSEN, IGNORE, MISMATCHED, Answers, Batch, ExtraTargets
from featherback.data.labelled import scored_answers
from featherback.data.prefixes import ALONE
from featherback.data.token_file import TokenFile

PROMPT = 0
SUPERVISED = 1
"""The bit of a mark that says that a token is supervised. The bits above it are the token's part."""

Ids = NDArray[np.int32]
Marks = NDArray[np.uint8]


class Answer(NamedTuple):
    """An answer: its kind, and the tokens of its prompt and itself."""

    part: int
    tokens: NDArray[Any]  # (n,)
    supervised: NDArray[np.bool_]  # (n,)  the prompt ends before the first supervised token

    @property
    def prompt(self) -> NDArray[Any]:
        """The tokens of the prompt; all, if nothing is supervised."""
        return self.tokens[: int(np.argmax(self.supervised)) if self.supervised.any() else len(self.tokens)]

    def cut(self, length: int) -> Answer:
        """Return the first `length` tokens, up to the last supervised one: nothing reads those after it."""
        last = np.flatnonzero(self.supervised[:length])
        stop = int(last[-1]) + 1 if last.size else 0
        return Answer(self.part, self.tokens[:stop], self.supervised[:stop])

    def to(self, prompt: NDArray[Any]) -> Answer:
        """Return the same answer to another prompt, of the kind MISMATCHED."""
        size = len(self.prompt)
        supervised = np.concatenate([np.zeros(len(prompt), bool), self.supervised[size:]])
        return Answer(MISMATCHED, np.concatenate([prompt, self.tokens[size:]]), supervised)


def joined(answers: Sequence[Answer], share: bool) -> tuple[Ids, Marks]:
    """Return tokens and marks of an example. `share`: a prompt that all answers have is stored once."""
    prompt = answers[0].prompt
    share = share and len(prompt) > 0 and all(np.array_equal(each.prompt, prompt) for each in answers)
    tokens, marks = [], []
    for number, answer in enumerate(answers):
        size = len(answer.prompt)
        parts = np.where(np.arange(len(answer.tokens)) < size, PROMPT, answer.part)
        behind = slice(size if share and number else 0, None)
        tokens.append(answer.tokens[behind])
        marks.append((parts << 1 | answer.supervised)[behind])
    return np.concatenate(tokens).astype(np.int32), np.concatenate(marks).astype(np.uint8)


def answers_in(tokens: Ids, marks: Marks) -> list[Answer]:
    """Return the answers of an example: the inverse of `joined`."""
    found = []
    for prompt, answers in prompts_of(marks):
        for part, place in answers:
            ids, own = (np.concatenate([each[prompt], each[place]]) for each in (tokens, marks))
            found.append(Answer(part, ids, (own & SUPERVISED).astype(bool)))
    return found


def count_targets(marks: Marks) -> int:
    """Return the number of supervised tokens that are predicted: not the first one of an answer without a prompt."""
    unseen = sum(
        int(marks[place.start] & SUPERVISED)
        for prompt, answers in prompts_of(marks)
        for _, place in answers
        if prompt.start == prompt.stop
    )
    return int(np.count_nonzero(marks & SUPERVISED)) - unseen


def longest_of(marks: Marks) -> int:
    """Return the number of tokens of the prompt with its longest answer."""
    found = prompts_of(marks)
    return max(_size(prompt) + _size(place) for prompt, answers in found for _, place in answers)


def prompts_of(marks: Marks) -> list[tuple[slice, list[tuple[int, slice]]]]:
    """Return the places of each prompt, perhaps empty, and the kind and the places of each answer to it."""
    kinds = marks >> 1
    bounds = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(marks)]
    found: list[tuple[slice, list[tuple[int, slice]]]] = []
    for start, stop in pairwise(bounds):
        kind = int(kinds[start])
        if kind == PROMPT:
            found.append((slice(start, stop), []))
        else:
            if not found:
                found.append((slice(0, 0), []))
            found[-1][1].append((kind, slice(start, stop)))
    return found


def _size(place: slice) -> int:
    return int(place.stop - place.start)


@dataclass
class _Sequences:
    """The sequences of a batch, one after another."""

    with_prompts: bool
    tokens: list[Ids] = field(default_factory=list)
    targets: list[Ids] = field(default_factory=list)
    weights: list[NDArray[np.float64]] = field(default_factory=list)
    positions: list[Ids] = field(default_factory=list)
    prefix: list[int] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)
    further: list[tuple[int, int, int]] = field(default_factory=list)  # (row, id, sequence)
    examples: list[int] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)

    def add_example(self, number: int, tokens: Ids, marks: Marks) -> None:
        """Add the sequences of an example: the prompt and each answer, or each answer behind its own prompt."""
        for prompt, answers in prompts_of(marks):
            shared, owner = len(answers) > 1 and _size(prompt) > 0, len(self.prefix)
            if shared:
                self._add_prompt(tokens, prompt, [place.start for _, place in answers])
            for part, place in answers:
                start = place.start if shared or not _size(prompt) else prompt.start
                before = _size(prompt) if shared else 0
                own = slice(start, place.stop)
                self._add(tokens[own], marks[own], before, owner if shared else ALONE, len(self.parts), part)
                self.examples.append(number)
                self.parts.append(part)

    def _add_prompt(self, tokens: Ids, prompt: slice, starts: list[int]) -> None:
        """Add a prompt on its own, whose last row predicts the first token of each answer."""
        first = len(self.parts)
        self._add(tokens[prompt], np.zeros(_size(prompt), np.uint8), 0, ALONE, first, CHOSEN)
        self.targets[-1][-1] = tokens[starts[0]]
        self.weights[-1][-1] = 1
        row = sum(each.size for each in self.tokens) - 1
        self.further += [(row, int(tokens[start]), first + k) for k, start in enumerate(starts) if k]

    def _add(self, tokens: Ids, marks: Marks, before: int, prefix: int, origin: int, part: int) -> None:
        """Add a sequence of sequence number `origin`. `before`: the tokens of the prefix."""
        supervised = (marks & SUPERVISED).astype(bool)
        asked = (marks >> 1 == PROMPT) & (self.with_prompts and part == CHOSEN)
        targets = np.full(tokens.size, IGNORE, np.int32)
        targets[:-1] = np.where(supervised[1:] | asked[1:], tokens[1:], IGNORE)
        weights = np.ones(tokens.size)
        weights[:-1] = supervised[1:]
        self.tokens.append(tokens)
        self.targets.append(targets)
        self.weights.append(weights)
        self.positions.append(np.arange(before, before + tokens.size, dtype=np.int32))
        self.prefix.append(prefix)
        self.origin.append(origin)

    def batch(self, reference: NDArray[np.float64]) -> Batch:
        """Return the batch. `reference` (A,): the log-probability of each answer before training."""
        shares = any(each != ALONE for each in self.prefix)
        further = None
        if self.further:
            rows, ids, sequences = np.array(self.further, np.int32).T
            further = ExtraTargets(rows, ids, np.ones(rows.size), sequences)
        return Batch(
            np.concatenate(self.tokens).astype(np.int32),
            np.concatenate(self.targets),
            np.concatenate(self.positions),
            np.cumsum([0, *(each.size for each in self.tokens)], dtype=np.int32),
            np.array(self.prefix, np.int32) if shares else None,
            np.array(self.origin, np.int32) if shares else None,
            np.concatenate(self.weights) if self.with_prompts else None,
            further,
            Answers(np.array(self.examples, np.int32), np.array(self.parts, np.int32), reference),
        )


def pair_batch(
    examples: Sequence[tuple[Ids, Marks]], reference: NDArray[np.float64] | None = None, with_prompts: bool = False
) -> Batch:
    """Return examples, each tokens (n,) and marks (n,), as one batch.

    `reference` (A,): the log-probability of each answer before training, in the order of examples and answers; None for
    zeros. `with_prompts`: the tokens of the chosen answers' prompts are targets too, with the weight 0.
    """
    sequences = _Sequences(with_prompts)
    for number, (tokens, marks) in enumerate(examples):
        sequences.add_example(number, tokens, marks)
    return sequences.batch(np.zeros(len(sequences.parts)) if reference is None else reference)


class MarkedFile(TokenFile):
    """Makes batches of examples. `with_prompts`: the tokens of prompts are targets too.

    `scored`: a trained head scores the last token of each answer, and tokens have no targets.
    """

    def __init__(self, path: str | os.PathLike[str], with_prompts: bool = False, scored: bool = False) -> None:
        super().__init__(path)
        self._with_prompts, self._scored = with_prompts, scored
        self.reference: npt.NDArray[np.float64] | None = None
        """The log-probabilities of each example's two answers before training (n_sequences, 2), if they are known."""

    def n_terms(self, i: int) -> int:
        return 1

    def batch(self, indices: npt.NDArray[np.int64]) -> Batch:
        examples = [(self.seq(int(i))[0], self.marks(int(i))) for i in indices]
        known = None if self.reference is None else self.reference[indices].reshape(-1)
        batch = pair_batch(examples, known, self._with_prompts)
        return scored_answers(batch) if self._scored else batch
