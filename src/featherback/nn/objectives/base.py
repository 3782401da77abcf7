"""The interface of objectives: a loss is a function of the log-probabilities of targets.

The head computes each row's log-probabilities and, once, the unscaled gradient of each. An objective receives the
log-probabilities and returns the loss and its derivative with respect to each of them. The head multiplies the
gradients by these derivatives (docs/derivations/loss.md).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from featherback.core.options import check
from featherback.data.batch import Batch, Targets
from featherback.data.forms import FORMS
from featherback.data.source import PLAIN
from featherback.data.token_file import TokenFile

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class PerTarget:
    """A number per target: its log-probability, or a loss's derivative with respect to it. A float: all are equal.

    For objectives that read scores, `first` is (n, K): the K scores of each row, or the derivatives by them.
    """

    first: Numbers | float  # (n,), of the first target of each supervised row
    further: Numbers  # (E,), of all other targets
    mean: Numbers | float = 0.0  # (n,), of the mean over the vocabulary, for an objective `over_vocabulary`

    @classmethod
    def joined(cls, spans: Sequence[PerTarget]) -> PerTarget:
        """Join the numbers of consecutive spans, without means."""
        return cls(*(np.concatenate([getattr(span, name) for span in spans]) for name in ("first", "further")))

    def split_by_span(self, spans: Sequence[PerTarget]) -> Iterator[PerTarget]:
        """Invert `joined`: yield the numbers of each of the spans."""
        first = further = 0
        for span in spans:
            rows = slice(first, first := first + np.size(span.first))
            more = slice(further, further := further + len(span.further))
            yield PerTarget(self.first if isinstance(self.first, float) else self.first[rows], self.further[more])

    def times(self, factor: float) -> PerTarget:
        """Return the numbers multiplied by `factor`."""
        return PerTarget(factor * self.first, factor * self.further, factor * self.mean)


@dataclass(frozen=True)
class Measured:
    """A sum over answers or pairs, and how many they are."""

    total: float
    count: int


Measures = Mapping[str, Measured]
"""What a run shows of a batch besides its loss: "chosen_reward", "rejected_reward", "accuracy"."""


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """A loss. Its options are the fields of a subclass, each made by `options.option`.

    Raises FeatherbackError, naming the option, for a value that is not acceptable.
    """

    whole_batch: ClassVar[bool] = False  # a row's derivative depends on the whole batch, which must pass the head first
    over_vocabulary: ClassVar[bool] = False  # reads each row's mean log-probability; not possible with `whole_batch`
    data_form: ClassVar[str] = PLAIN  # the form of its data, an entry of `data.forms`
    most_answers: ClassVar[int] = 1  # answers that an example may have: more than one if it holds preferences
    over_prompt: ClassVar[bool] = False  # tokens of prompts are targets too, with the weight 0 in their answer
    needs_reference: ClassVar[bool] = False  # compares log-probabilities with those before training
    measured: ClassVar[bool] = False  # has `measures`
    rate: ClassVar[float] = 1.0  # the default learning rate, relative to that of the next-token loss
    scores: ClassVar[str | None] = None  # reads scores of a trained head, one per "label" or a single "reward"
    pooling: ClassVar[str | None] = None  # reads embeddings of whole texts, pooled in this way (`nn/pooling.py`)

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        """Return the summed loss (nats) and its derivative with respect to each log-probability.

        The rows are a batch's, or a span's unless `whole_batch`. It must not fail for any log-probabilities, because
        memory is counted with zeros.
        """

    @property
    def room(self) -> int:
        """Tokens that an example needs besides its own, as `Source.room`."""
        return 0

    @property
    def of_logits(self) -> bool:
        """Whether it reads log-probabilities of tokens, not numbers of whole texts."""
        return self.scores is None and self.pooling is None

    @property
    def of_tokens(self) -> bool:
        """Whether the loss is a sum over tokens, in nats, rather than over examples."""
        return self.data_form == PLAIN

    def outputs(self, labels: Sequence[str] | None) -> tuple[str, ...]:
        """Return the names of the scores of its trained head; empty without one.

        `labels`: the names of the labels; None if they are not known yet.
        """
        return ()

    def tokens(self, path: str | os.PathLike[str], outputs: Sequence[str] = ()) -> TokenFile:
        """Open a token file that makes the batches that this objective reads. `outputs`: as returned by `outputs`."""
        return FORMS[self.data_form].open(path, outputs, self.over_prompt, self.scores is not None)

    @property
    def further_temperature(self) -> float | None:
        """The temperature of further targets if they are a teacher's likely tokens. None: they are other answers.

        A teacher's tokens are many, so the head computes the gradient of each of them apart, without rounding. With a
        temperature other than 1 they have a softmax of their own. Not possible with `whole_batch`, `over_vocabulary`.
        """
        return None

    def host_bytes(self, tokens: int, width: int) -> int:
        """Return the bytes of a batch's further targets outside the arena, for a span of `tokens` tokens."""
        return 0

    def measures(self, targets: Targets, logp: PerTarget) -> Measures:
        """Return what a run shows of a batch besides its loss."""
        return {}

    def summary(self, totals: Measures) -> dict[str, float]:
        """Return what a run shows of measures that were added up: by default their means."""
        return {name: each.total / each.count for name, each in totals.items() if each.count}

    def fullest(self, batch: Batch) -> Batch:
        """Return `batch` with every token supervised and as many further targets as possible, for counting memory."""
        return batch
