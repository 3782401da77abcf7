"""Steps that learn from the model's own answers: it writes them, rewards judge them, and the objective learns.

A step is a function of the parameters before it, the seed, its number and its prompts. So a run that is killed in the
middle of a step repeats the step, and nothing of it has to be saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.data.batch import IGNORE, Batch, Rollouts
from featherback.data.prompts import PromptFile
from featherback.data.token_file import TokenFile
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.infer.rollouts import Asked, Desk, Written, layout_of
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.nn.objectives.sampled import Sampled
from featherback.runs.events import Judged
from featherback.runs.outcome import repetition
from featherback.runs.rewards.base import Answer
from featherback.runs.rewards.judge import Judge
from featherback.runs.stream import Group
from featherback.runs.trained import Outcome, TrainedAdapter

if TYPE_CHECKING:
    from featherback.data.tokenizers.tokenizer import Tokenizer
    from featherback.runs.config import TrainConfig

_STREAM = 0x726F6C6C
"""Keeps the random numbers of answers apart from others of the same seed and step."""
SHOWN, LETTERS = 3, 400
"""Answers that an evaluation shows, and the most characters of each."""
Check = Callable[[], None]


class _Learned(NamedTuple):
    """An answer that a step learns from."""

    tokens: list[int]  # prompt and answer
    prompt: int  # tokens of the prompt
    logps: list[float]
    advantage: float
    share: float


class Judgement(NamedTuple):
    """Answers that were judged: rewards (n,), what a run shows, texts, and the scores of each reward (rewards, n)."""

    rewards: NDArray[np.float64]
    measures: dict[str, float]
    texts: list[str]
    scores: NDArray[np.float64]


@dataclass(frozen=True)
class Pen:
    """What answers are written and judged with."""

    desk: Desk
    judge: Judge
    most: int  # tokens of an answer

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return load_tokenizer(self.desk.model.path)

    def write(self, asked: Sequence[Asked], check: Check) -> list[Written]:
        """Return an answer to each prompt."""
        return self.desk.write(asked, self.most, self.tokenizer.end_ids, check)

    def text(self, written: Written) -> str:
        """Return an answer as text, without control tokens."""
        tokens = written.tokens[:-1] if written.ended else written.tokens
        return self.tokenizer.decode(tokens)

    def judged(self, found: Sequence[Written], records: Sequence[Mapping[str, object]]) -> Judgement:
        """Judge an answer to each record's prompt."""
        texts = [self.text(each) for each in found]
        scores = self.judge.scores([Answer(t, r, w.ended) for t, r, w in zip(texts, records, found)])
        rewards, parts = self.judge.summed(scores)
        tokens = max(1, sum(len(each.tokens) for each in found))
        measures = {
            "reward": float(rewards.mean()),
            **parts,
            "answer_length": tokens / len(found),
            "ended": sum(each.ended for each in found) / len(found),
            "repetition": repetition(texts),
            "entropy": -sum(sum(each.logps) for each in found) / tokens,
        }
        return Judgement(rewards, measures, texts, scores)


def pen_of(config: TrainConfig, plan: Plan, model: Model, adapter: Adapter | None, judge: Judge) -> Pen:
    """Return what a run writes and judges its answers with."""
    assert plan.slots is not None
    asked = config.rollouts
    slots = min(plan.slots, asked.prompts * asked.answers)
    return Pen(Desk(model, adapter, config.sequence, plan.compute, layout_of(plan), slots), judge, asked.answer_tokens)


class RolloutSteps:
    """Does the steps of a run. `more`: takes the next prompts from the data; None after the last."""

    def __init__(
        self, objective: Sampled, seed: int, pen: Pen, trained: TrainedAdapter, tokens: PromptFile,
        more: Callable[[], Group | None],
    ) -> None:  # fmt: skip
        self._objective, self._seed, self._pen, self._trained = objective, seed, pen, trained
        self._tokens, self._more = tokens, more
        self._measures: dict[str, float] = {}

    def step(
        self, prompts: Group, lr: float, step: int, check: Check, check_maps: Check
    ) -> tuple[Outcome, int]:  # fmt: skip
        """Do step number `step` with its first prompts. Returns its outcome, and the tokens that it learned from.

        `check` is called while answers are written. If it raises an error, nothing has changed. `check_maps`: as for
        `Trained.step`.
        """
        learned, count = self._answered(prompts, step, check)
        outcome, tokens = Outcome(0.0, 0.0), sum(len(each.tokens) for each in learned)
        if not learned:  # all answers to each prompt are equally good: there is nothing to learn
            return outcome, 0
        for _ in range(self._objective.updates):
            group = Group(self._batches(learned), count, tokens)
            outcome = self._trained.step(group, lr, step, check_maps)
        return outcome, tokens

    def evaluate(self, tokens: TokenFile, check: Check) -> tuple[dict[str, float], list[Judged]]:
        """Answer held-out prompts with the parameters of the moment. Returns the measures, and the first answers."""
        assert isinstance(tokens, PromptFile)
        self._trained.method.resources.release()
        graded, shown = evaluated(self._pen, tokens, check)
        return graded.measures, shown

    def take_measures(self) -> dict[str, float]:
        """Return the measures of the last step, and forget them."""
        found, self._measures = self._measures, {}
        return found

    def _answered(self, prompts: Group, step: int, check: Check) -> tuple[list[_Learned], int]:
        """Return the answers that a step learns from, and the number of answers that its loss is a mean over."""
        asked, size = self._objective, self._objective.answers
        self._trained.method.resources.release()
        kept: list[tuple[list[int], list[Written], NDArray[np.float64]]] = []
        seen, place, following = list[dict[str, float]](), 0, prompts
        for number in range(asked.rounds):
            places = [int(i) for batch in following.batches for i in _places(batch)]
            wanted = [
                Asked(prompt.tolist(), (self._seed, _STREAM, step, place + p, index))
                for p, prompt in enumerate(map(self._tokens.prompt, places))
                for index in range(size)
            ]
            found = self._pen.write(wanted, check)
            records = [self._tokens.record(i) for i in places for _ in range(size)]
            rewards, measures, *_ = self._pen.judged(found, records)
            rows = rewards.reshape(-1, size)
            differ = np.ptp(rows, axis=1) > 0
            seen.append({**measures, "reward_std": float(rows.std(axis=1).mean()), "equal": float(1 - differ.mean())})
            for p in range(len(places)):
                if differ[p] or asked.rounds == 1:
                    prompt = list(wanted[p * size].prompt)
                    kept.append((prompt, found[p * size : (p + 1) * size], rows[p]))
            place += len(places)
            if len(kept) >= asked.prompts or number + 1 == asked.rounds or (again := self._more()) is None:
                break
            following = again
        self._measures = {name: float(np.mean([each[name] for each in seen])) for name in seen[0]}
        kept = kept[: asked.prompts] if asked.rounds > 1 else kept
        return (_learned(asked, kept), len(kept) * size) if kept else ([], 0)

    def _batches(self, learned: Sequence[_Learned]) -> Iterator[Batch]:
        """Yield batches of as many answers as fit, in order: answers to one prompt are neighbours and share it."""
        most, row = self._trained.method.plan.tokens, list[_Learned]()
        for each in learned:
            if row and sum(len(one.tokens) for one in row) + len(each.tokens) > most:
                yield _batch(row)
                row = []
            row.append(each)
        if row:
            yield _batch(row)


def evaluated(pen: Pen, tokens: PromptFile, check: Check) -> tuple[Judgement, list[Judged]]:
    """Answer all prompts of a token file greedily. Returns all answers, and the first ones to be shown."""
    prompts = [tokens.prompt(i).tolist() for i in range(len(tokens))]
    found = pen.write([Asked(prompt, None) for prompt in prompts], check)
    graded = pen.judged(found, [tokens.record(i) for i in range(len(tokens))])
    shown = [
        Judged(pen.tokenizer.decode(prompt, special=True)[-LETTERS:], text[:LETTERS], float(reward))
        for prompt, text, reward in zip(prompts[:SHOWN], graded.texts, graded.rewards)
    ]
    return graded, shown


def _places(batch: Batch) -> NDArray[np.int64]:
    """Return the numbers of a batch's prompts in their file."""
    assert batch.source is not None
    return batch.source.sequences


def _learned(
    objective: Sampled, kept: Sequence[tuple[list[int], list[Written], NDArray[np.float64]]]
) -> list[_Learned]:
    """Judge answers, and return those that add something to the loss."""
    rewards = np.stack([each for _, _, each in kept])
    lengths = np.array([[len(each.tokens) for each in group] for _, group, _ in kept], np.float64)
    advantages, shares = objective.judge(rewards, lengths)
    return [
        _Learned(prompt + each.tokens, len(prompt), each.logps, float(advantage), float(share))
        for (prompt, group, _), own, weights in zip(kept, advantages, shares)
        for each, advantage, share in zip(group, own, weights)
        if advantage
    ]


def _batch(row: Sequence[_Learned]) -> Batch:
    """Return answers as one batch."""
    labels = [[IGNORE] * each.prompt + each.tokens[each.prompt :] for each in row]
    batch = Batch.from_sequences([each.tokens for each in row], labels)
    logp = np.zeros(batch.n_tokens)
    logp[batch.targets != IGNORE] = np.concatenate([each.logps for each in row])
    advantages, shares = (np.array([getattr(each, name) for each in row]) for name in ("advantage", "share"))
    return Batch(
        batch.tokens, batch.targets, batch.positions, batch.cu_seqlens, rollouts=Rollouts(logp, advantages, shares)
    )
