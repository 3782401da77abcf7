"""Pairs and labelled answers as tokens, and the losses of preferences on them, from their papers, with autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import logsigmoid

from featherback.data.batch import CHOSEN, MISMATCHED, REJECTED, Batch
from featherback.data.pairs import Answer, joined, pair_batch
from featherback.nn.objectives import OPTIONS
from featherback.nn.objectives.base import Objective

REFERENCE = ((-31.0, -45.0), (-18.0, -30.0), (-40.0, -9.0))
LABELS = (True, False, True)


@dataclass(frozen=True)
class Compared:
    """A prompt with two answers: a pair, or a labelled answer with one of another prompt."""

    prompt: list[int]
    answers: tuple[list[int], list[int]]
    parts: tuple[int, int]

    def example(self, share: bool) -> tuple[Any, Any]:
        """Return tokens and marks."""
        asked = len(self.prompt)
        found = [
            Answer(part, np.array(self.prompt + answer), np.arange(asked + len(answer)) >= asked)
            for part, answer in zip(self.parts, self.answers)
        ]
        return joined(found, share)


def examples(vocabulary: int, labelled: bool = False, seed: int = 3) -> list[Compared]:
    """Three examples: answers of different lengths, one of a single token, one prompt of a single token."""
    rng = np.random.default_rng(seed)
    sizes = ((11, 5, 8), (1, 4, 6), (9, 7, 1))
    rows = [[rng.integers(0, vocabulary, size).tolist() for size in each] for each in sizes]
    parts = [(CHOSEN if label else REJECTED, MISMATCHED) if labelled else (CHOSEN, REJECTED) for label in LABELS]
    return [Compared(prompt, (one, other), part) for (prompt, one, other), part in zip(rows, parts)]


def batch_of(found: Sequence[Compared], objective: Objective, share: bool = True) -> Batch:
    """Return examples as a batch for `objective`, with the log-probabilities REFERENCE if it needs them."""
    known = np.array(REFERENCE[: len(found)]).reshape(-1) if objective.needs_reference else None
    return pair_batch([each.example(share) for each in found], known, getattr(objective, "over_prompt", False))


Logps = Callable[[list[int]], torch.Tensor]
"""Tokens (n,) -> the log-probability of each token but the first (n - 1,), in float64."""


@dataclass(frozen=True)
class Scored:
    """Sum (P,) and mean (P,) of each answer's log-probabilities, and all of those of the first answers."""

    sums: tuple[torch.Tensor, torch.Tensor]
    means: tuple[torch.Tensor, torch.Tensor]
    completion: torch.Tensor
    whole: torch.Tensor  # with their prompts

    @classmethod
    def of(cls, found: Sequence[Compared], logps: Logps) -> Scored:
        """Run each sequence by itself."""
        runs = [[logps(each.prompt + answer) for answer in each.answers] for each in found]
        own = [[run[len(each.prompt) - 1 :] for run in row] for each, row in zip(found, runs)]
        sums, means = (
            tuple(torch.stack([each(row[k]) for row in own]) for k in (0, 1)) for each in (torch.sum, torch.mean)
        )
        return cls(
            (sums[0], sums[1]),
            (means[0], means[1]),
            torch.cat([row[0] for row in own]),
            torch.cat([r[0] for r in runs]),
        )


def _margin(s: Scored) -> torch.Tensor:
    known = torch.tensor(REFERENCE, dtype=torch.float64)
    return (s.sums[0] - known[:, 0]) - (s.sums[1] - known[:, 1])


def _smooth(d: torch.Tensor, share: float) -> torch.Tensor:
    return (-(1 - share) * logsigmoid(d) - share * logsigmoid(-d)).mean()


def dpo(s: Scored, o: Mapping[str, float]) -> torch.Tensor:
    likelihood = -s.completion.mean()
    return _smooth(o["beta"] * _margin(s), o["label_smoothing"]) + o["rpo_alpha"] * likelihood


def robust_dpo(s: Scored, o: Mapping[str, float]) -> torch.Tensor:
    d, share = o["beta"] * _margin(s), o["label_smoothing"]
    return ((-(1 - share) * logsigmoid(d) + share * logsigmoid(-d)) / (1 - 2 * share)).mean()


def ipo(s: Scored, o: Mapping[str, float]) -> torch.Tensor:
    known, sizes = torch.tensor(REFERENCE, dtype=torch.float64), [s.sums[k] / s.means[k] for k in (0, 1)]
    h = (s.sums[0] - known[:, 0]) / sizes[0].detach() - (s.sums[1] - known[:, 1]) / sizes[1].detach()
    return ((h - 1 / (2 * o["beta"])) ** 2).mean()


def simpo(s: Scored, o: Mapping[str, float]) -> torch.Tensor:
    return _smooth(o["beta"] * (s.means[0] - s.means[1]) - o["simpo_gamma"], o["label_smoothing"])


def orpo(s: Scored, o: Mapping[str, float]) -> torch.Tensor:
    odds = [each - torch.log1p(-each.exp()) for each in s.means]
    return -o["beta"] * logsigmoid(odds[0] - odds[1]).mean() - s.whole.mean()


def kto(s: Scored, o: Mapping[str, float]) -> torch.Tensor:
    known = torch.tensor(REFERENCE, dtype=torch.float64)
    own, other = s.sums[0] - known[:, 0], s.sums[1] - known[:, 1]
    z = other.mean().clamp(min=0).detach()
    wanted = torch.tensor(LABELS)
    value = torch.where(wanted, torch.sigmoid(o["beta"] * (own - z)), torch.sigmoid(o["beta"] * (z - own)))
    weight = torch.where(wanted, o["desirable_weight"], o["undesirable_weight"])
    return (weight * (1 - value)).mean()


TRUTHS: dict[str, Callable[[Scored, Mapping[str, float]], torch.Tensor]] = {
    each.__name__: each for each in (dpo, robust_dpo, ipo, simpo, orpo, kto)
}
CASES: dict[str, tuple[str, dict[str, float]]] = {
    "dpo": ("dpo", {"beta": 0.3}),
    "cdpo": ("dpo", {"label_smoothing": 0.2}),
    "rpo": ("dpo", {"rpo_alpha": 0.7}),
    "robust_dpo": ("robust_dpo", {"label_smoothing": 0.2}),
    "ipo": ("ipo", {}),
    "simpo": ("simpo", {"beta": 2.0, "label_smoothing": 0.1}),
    "orpo": ("orpo", {"beta": 0.4}),
    "kto": ("kto", {"desirable_weight": 1.2, "undesirable_weight": 0.8}),
}
"""Name -> the objective and its options."""


def objective_of(case: str) -> Objective:
    """Return the objective of a case."""
    name, options = CASES[case]
    return OPTIONS.make(name, options)


def truth_of(case: str, found: Sequence[Compared], logps: Logps) -> torch.Tensor:
    """Return the mean loss of the examples."""
    return TRUTHS[CASES[case][0]](Scored.of(found, logps), vars(objective_of(case)))


def labelled(case: str) -> bool:
    """Return whether a case has labelled answers."""
    return objective_of(case).data_form == "labels"
