"""Choose the next token from its logits."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.core.naming import argument_is
from featherback.errors import FeatherbackError

FIRST = 256
"""Tokens that are sorted first."""


@dataclass
class Sampler:
    """Pick the likeliest token at temperature 0, else draw from softmax(logits / temperature).

    `top_k` keeps the k likeliest tokens (0 = all). `top_p` then keeps the fewest whose probabilities add up to at least
    `top_p` (1 = all). `min_p` then keeps the tokens whose probability is at least `min_p` times that of the likeliest
    (0 = all). The same seed draws the same tokens.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise FeatherbackError(f"{argument_is('temperature', self.temperature)}; it must be at least 0.")
        if not 0 < self.top_p <= 1:
            raise FeatherbackError(f"{argument_is('top_p', self.top_p)}; it must be above 0 and at most 1.")
        if self.top_k < 0:
            raise FeatherbackError(f"{argument_is('top_k', self.top_k)}; it must be at least 0 (0 = off).")
        if not 0 <= self.min_p <= 1:
            raise FeatherbackError(f"{argument_is('min_p', self.min_p)}; it must be from 0 to 1 (0 = off).")
        if self.seed < 0:
            raise FeatherbackError(f"{argument_is('seed', self.seed)}; it must be at least 0.")

    @cached_property
    def _random(self) -> np.random.Generator:
        """NumPy's generator. It is created only when needed, because it takes 8 MB."""
        return np.random.default_rng(self.seed)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """Return the next token's id, from logits (vocab,)."""
        if self.temperature == 0:
            return int(np.argmax(logits))
        scaled = logits / np.float64(self.temperature)
        weights = np.exp(scaled - scaled.max())
        count = self.top_k or logits.size
        total = weights.sum() if count >= logits.size else weights[likeliest(logits, count)].sum()
        sorted_tokens = FIRST  # a few tokens usually have nearly all of the probability, so the others are not sorted
        while True:
            order = likeliest(logits, min(sorted_tokens, count))
            chances = weights[order] / total
            reached = int(np.searchsorted(np.cumsum(chances), self.top_p)) + 1  # including the one that reaches top_p
            kept = min(reached, int((chances >= self.min_p * chances[0]).sum()))
            if kept < order.size or order.size == min(count, logits.size):
                break
            sorted_tokens *= 8
        chances = chances[:kept] / chances[:kept].sum()
        return int(order[self._random.choice(chances.size, p=chances)])


class Biases(NamedTuple):
    """What changes logits before a token is chosen, as in OpenAI's API."""

    frequency: float = 0.0
    """Taken from a token's logit for each time that the answer has it."""
    presence: float = 0.0
    """Taken from a token's logit once the answer has it."""
    tokens: Mapping[int, float] = {}
    """Token id -> what is added to its logit."""
    repetition: float = 1.0
    """Divides the logit of each token of prompt and answer, or multiplies a negative one (Keskar et al. 2019)."""
    window: int | None = None
    """How many of the last tokens `repetition` looks at; None: all."""


@dataclass
class Biased:
    """A sampler of one answer to a prompt, for logits that are changed first."""

    sampler: Sampler
    biases: Biases
    prompt: Sequence[int] = ()

    def __post_init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._recent = deque(self.prompt if self.biases.repetition != 1 else (), self.biases.window)
        added, count = self.biases.tokens, len(self.biases.tokens)  # a request may have one for each token
        self._tokens = np.fromiter(added.keys(), np.intp, count)
        self._added = np.fromiter(added.values(), np.float32, count)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """Return the next token's id, from logits (vocab,), which stay as they are."""
        changed = logits.copy()
        changed[self._tokens] += self._added
        if self.biases.repetition != 1:
            seen = np.unique(np.fromiter(self._recent, np.intp, len(self._recent)))
            factor = np.float32(self.biases.repetition)
            changed[seen] = np.where(changed[seen] > 0, changed[seen] / factor, changed[seen] * factor)
        for token, count in self._counts.items():
            changed[token] -= count * self.biases.frequency + self.biases.presence
        token = self.sampler(changed)
        self._counts[token] += 1
        self._recent.append(token)
        return token


def likeliest(logits: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Return the `count` tokens with the highest logits (vocab,), in order; of equal ones the first."""
    if count >= logits.size:
        return np.argsort(-logits, kind="stable")
    least = np.partition(logits, logits.size - count)[logits.size - count]
    found = np.flatnonzero(logits >= least)
    return found[np.argsort(-logits[found], kind="stable")][:count]
