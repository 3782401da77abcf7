"""A loss is a function of the log-probabilities of targets; docs/derivations/loss.md has what follows from its slopes.

The head computes each row's log-probabilities and, once, unscaled, the gradient of each. An objective reads the former
and returns its value and its derivative by each of them, with which the head weighs the latter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from featherback.core.options import check
from featherback.data.batch import Batch, Targets

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class PerTarget:
    """A number per target: its log-probability, or the derivative of a loss by that. A float stands for equal ones."""

    first: Numbers | float  # (n,), of each supervised row's first target
    further: Numbers  # (E,), of the targets that rows have beside it
    mean: Numbers | float = 0.0  # (n,), of the mean over the vocabulary, for an objective `over_vocabulary`

    @classmethod
    def joined(cls, spans: Sequence[PerTarget]) -> PerTarget:
        """Those of consecutive spans as one, without means."""
        return cls(*(np.concatenate([getattr(span, name) for span in spans]) for name in ("first", "further")))

    def parted(self, spans: Sequence[PerTarget]) -> Iterator[PerTarget]:
        """The inverse of `joined`: as many for each span as that has."""
        first = further = 0
        for span in spans:
            rows = slice(first, first := first + np.size(span.first))
            more = slice(further, further := further + len(span.further))
            yield PerTarget(self.first if isinstance(self.first, float) else self.first[rows], self.further[more])

    def times(self, factor: float) -> PerTarget:
        return PerTarget(factor * self.first, factor * self.further, factor * self.mean)


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """A loss, its options the fields of a subclass, each made by `options.option`.

    FeatherbackError, naming the option, for a value that an option cannot have.
    """

    whole_batch: ClassVar[bool] = False  # a row's derivative depends on other rows: all must have passed the head
    over_vocabulary: ClassVar[bool] = False  # reads each row's mean log-probability; not with `whole_batch`

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        """The summed loss (nats) of rows, and its derivative by each of their log-probabilities.

        They are a batch's, or a span's unless `whole_batch`. It must not fail, whatever the log-probabilities are:
        memory is counted with zeros.
        """

    def fullest(self, batch: Batch) -> Batch:
        """`batch`, every token supervised, with as many further targets as a batch can have: memory is counted so."""
        return batch
