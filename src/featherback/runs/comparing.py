"""Compares what several models answer to the same held-out prompts: a model without and with adapters, say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from featherback.core.decode import encode
from featherback.core.naming import argument, argument_is
from featherback.data.general import ANSWER_TOKENS, INSTRUCTIONS, TEXT
from featherback.data.source import Source
from featherback.errors import FeatherbackError, excerpt, expected
from featherback.runs import intervals
from featherback.runs.evaluation import Evaluation
from featherback.runs.rewards.rouge_l import rouge_l
from featherback.runs.rewards.suited import NUMBERS, TEXTS
from featherback.runs.rewards.written import read

GENERAL: Mapping[str, Any] = {"rewards": ("regex:.",), "answer_tokens": ANSWER_TOKENS}
"""Fields of a Judging with which general instructions are answered. Nothing is judged."""


@dataclass(frozen=True)
class General:
    """What is left of what the first candidate can, measured on fixed text and instructions (`data.general`)."""

    loss: float
    """Of the text, in nats per token."""
    kept: float
    """The mean ROUGE-L of its answers and those of the first candidate: 1 if they are equal."""
    answers: Sequence[str]


@dataclass(frozen=True)
class Candidate:
    """What was measured of a model."""

    name: str
    metrics: Mapping[str, float]
    """The mean of each metric."""
    loss: float | None
    """The held-out loss in nats per token; None if the data have no answers from which it can be computed."""
    answer_length: float
    """Tokens."""
    ended: float
    """Share of answers that ended by themselves."""
    repetition: float
    answers: Sequence[str]
    general: General | None
    """What it still can; None if that was not measured."""


@dataclass(frozen=True)
class Difference:
    """How much better a candidate is than the first one, prompt by prompt. Each pair is an interval of 95 %."""

    name: str
    metric: str
    difference: float
    interval: tuple[float, float]
    better: int
    worse: int
    equal: int
    win_rate: float | None
    """better / (better + worse)."""
    win_interval: tuple[float, float]
    p: float
    """Of the exact sign test."""


@dataclass(frozen=True)
class Comparison:
    """The candidates, the first of which the others are compared with, and their differences for each metric."""

    prompts: Sequence[str]
    right: Sequence[str | None]
    candidates: Sequence[Candidate]
    differences: Sequence[Difference]
    instructions: Sequence[str]
    """What the candidates' `general.answers` answer."""
    note: str | None = None
    """Why there is no held-out loss."""

    def values(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return encode(self)

    def below(self, at_least: Mapping[str, float]) -> str | None:
        """Return a sentence about the first candidate that does not reach a metric's value; None if all do.

        The first candidate counts only if it is alone.
        """
        for metric, least in at_least.items():
            if metric not in self.candidates[0].metrics:
                raise FeatherbackError(_unknown(metric, tuple(self.candidates[0].metrics)))
            for each in self.candidates[1:] or self.candidates:
                if not each.metrics[metric] >= least:
                    asked = argument("at_least", f"{metric}={least:g}")
                    return f"{each.name} reached {metric} {each.metrics[metric]:.4f}, which is less than {asked}."
        return None


def compared(
    names: Sequence[str], answers: Sequence[Evaluation], losses: Sequence[Evaluation | None],
    general: Sequence[tuple[Evaluation, Evaluation]] = (), note: str | None = None,
) -> Comparison:  # fmt: skip
    """Return the comparison of candidates whose answers were judged. Raises FeatherbackError if their prompts differ.

    `losses`: the evaluations of their loss; `note`: why there are none. `general`: of each, the answers to the general
    instructions, and the loss of the general text; or nothing.
    """
    scores = [
        {name: np.array([each.scores[name] for each in found.answers]) for name in found.answers[0].scores}
        for found in answers
    ]
    if len({len(found.answers) for found in answers}) > 1:
        raise FeatherbackError(
            f"The candidates answered different prompts, because some are too long for one of them. Set "
            f"{argument('seq_len')} to what all of them can read."
        )
    candidates = [
        Candidate(
            name, {metric: float(values.mean()) for metric, values in own.items()},
            None if loss is None else loss.loss,
            found.measures["answer_length"], found.measures["ended"], found.measures["repetition"],
            [each.text for each in found.answers], left,
        )
        for name, found, own, loss, left in zip(names, answers, scores, losses, _general(general, names), strict=True)
    ]  # fmt: skip
    differences = [
        _difference(name, metric, own[metric] - first)
        for name, own in zip(names[1:], scores[1:])
        for metric, first in scores[0].items()
    ]
    asked = answers[0].answers
    instructions = [each.prompt for each in general[0][0].answers] if general else []
    return Comparison(
        [each.prompt for each in asked], [each.right for each in asked], candidates, differences, instructions, note
    )


def _general(found: Sequence[tuple[Evaluation, Evaluation]], names: Sequence[str]) -> list[General | None]:
    if not found:
        return [None] * len(names)
    first = [each.text for each in found[0][0].answers]
    return [
        General(
            loss.loss,
            float(
                np.mean(
                    [1.0 if each.text == text else rouge_l(each.text, text) for each, text in zip(own.answers, first)]
                )
            ),
            [each.text for each in own.answers],
        )
        for own, loss in found
    ]


def general_requests(asked: Any, judging: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return an EvaluationRequest like `asked` for the general instructions, and one for the general text."""
    return (
        asked._replace(data=encode(Source.of(INSTRUCTIONS)), seq_len=None, rewards={**judging, **GENERAL}),
        asked._replace(data=encode(Source.of(TEXT)), seq_len=None, rewards=None),
    )


def names_of(places: Sequence[tuple[object, object]]) -> tuple[str, ...]:
    """Return a name for each (model, adapter or None): as short as it can be while all of them differ."""
    paths = [str(model if adapter is None else adapter) for model, adapter in places]
    short = [Path(path).name or path for path in paths]
    return tuple(short if len(set(short)) == len(short) else paths)


def least_of(texts: Sequence[str]) -> dict[str, float]:
    """Return {metric: value} of texts such as "token_f1=0.6"; raises FeatherbackError if the form is wrong."""
    found = dict[str, float]()
    for text in texts:
        metric, _, value = text.rpartition("=")
        try:
            found[metric] = float(value)
        except ValueError:
            metric = ""
        if not metric:
            example = argument("at_least", "token_f1=0.6")
            raise FeatherbackError(f"{argument_is('at_least', excerpt(text))}; write METRIC=VALUE: {example}.")
    return found


def check_metrics(at_least: Mapping[str, float], rewards: Sequence[str]) -> None:
    """Raise FeatherbackError if a metric is none of the rewards; without rewards, one that can suit no data."""
    labels = [f"{kind}:{rest}".removesuffix(":") for _, kind, rest in map(read, rewards)]
    known = labels or list(dict.fromkeys((*TEXTS, *NUMBERS)))
    for metric in at_least:
        if metric not in known and (labels or metric.partition(":")[0] not in known):
            raise FeatherbackError(_unknown(metric, known))


def _difference(name: str, metric: str, found: Any) -> Difference:
    better, worse = int((found > 0).sum()), int((found < 0).sum())
    decided = better + worse
    return Difference(
        name, metric, float(found.mean()), intervals.bootstrap(found), better, worse, found.size - decided,
        better / decided if decided else None, intervals.share(better, worse), intervals.sign_test(better, worse),
    )  # fmt: skip


def _unknown(metric: str, known: Sequence[str]) -> str:
    return f"{argument('at_least', metric)}: this is no metric of the comparison; {expected(metric, known)}"
