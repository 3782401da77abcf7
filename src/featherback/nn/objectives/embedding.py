"""Objectives on the embeddings of whole texts (`nn/pooling.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from featherback.core.options import option
from featherback.data.batch import ANCHOR, POSITIVE, Answers, Batch, Targets
from featherback.nn.objectives.base import Numbers
from featherback.nn.objectives.scored import Scored

POOLINGS = ("mean", "cls", "last")


@dataclass(frozen=True, kw_only=True)
class Embedding(Scored):
    """A loss of the embeddings of whole texts (S, D), before they are normed to length 1."""

    data_form: ClassVar[str] = "alike"

    pooling: str = option(  # type: ignore[misc]
        "mean",
        choices=POOLINGS,
        help="What the embedding of a text is. mean: the mean of all tokens' states. cls: the state of the first token."
        " last: that of the last token, for models that write text.",
    )

    def fullest(self, batch: Batch) -> Batch:
        """Every two sequences are a pair."""
        count = batch.n_sequences
        numbers = np.arange(count, dtype=np.int32)
        parts = np.where((numbers % 2 == 0) & (numbers + 1 < count), ANCHOR, POSITIVE).astype(np.int32)
        targets = batch.targets.copy()
        targets[:] = -100
        targets[batch.cu_seqlens[1:] - 1] = 0
        return replace(batch, targets=targets, answers=Answers(numbers // 2, parts, np.zeros(count)))


@dataclass(frozen=True, kw_only=True)
class KeptEmbeddings(Embedding):
    """Keeps the embeddings. Its loss is 0."""

    found: list[Numbers] = field(default_factory=list)  # of each batch (S, D), in the order of its texts

    def of_scores(self, targets: Targets, scores: Numbers) -> tuple[float, Numbers]:
        self.found.append(scores[np.argsort(targets.sequences)])
        return 0.0, np.zeros_like(scores)


@dataclass(frozen=True, kw_only=True)
class GivenSlopes(Embedding):
    """A linear loss: the sum of embeddings times `slopes` (S, D), which are given. It is shown as 0."""

    slopes: Numbers

    def of_scores(self, targets: Targets, scores: Numbers) -> tuple[float, Numbers]:
        return 0.0, self.slopes[targets.sequences]
