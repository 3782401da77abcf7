"""InfoNCE: a text is to find its partner among those of all texts of a step (van den Oord et al., 2018).

    l_i = - log softmax_j(u_i . v_j / t)[i],   u = e / |e|,   v: all partners and hard negatives of the step

Sentence Transformers calls it MultipleNegativesRankingLoss. Every text of a step is in the loss of every other, so a
step has its embeddings first (`methods/cached.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.core.options import UnclearError, option
from featherback.data.batch import ANCHOR, POSITIVE, Answers, Targets
from featherback.nn.objectives.base import Measured, Measures, Numbers, PerTarget
from featherback.nn.objectives.embedding import Embedding
from featherback.nn.objectives.scored import scores_in

ROWS = 64
"""Texts that are compared with all others at a time."""


def sizes(written: Any) -> tuple[int, ...]:
    """Return the sizes of "384,128". Raises UnclearError if they are no whole numbers."""
    parts = written.split(",") if isinstance(written, str) else written
    try:
        return tuple(sorted({int(part) for part in parts}, reverse=True))
    except (TypeError, ValueError):
        raise UnclearError("write whole numbers, such as 384,128,64") from None


class _Block(NamedTuple):
    """Some anchors compared with all candidates."""

    anchors: NDArray[np.intp]  # (m,)  rows of the embeddings
    own: NDArray[np.intp]  # (m,)  the candidate that each is to find
    logits: Numbers  # (m, candidates)


@dataclass(frozen=True, kw_only=True)
class Contrastive(Embedding):
    """The summed loss of the pairs of a step."""

    measured: ClassVar[bool] = True
    rate: ClassVar[float] = 1.0

    pairs: int = option(64, least=2, help="Pairs per optimizer step. Each text is compared with those of all pairs.")
    contrast: float = option(
        0.05, above=0, help="Divides the cosines of texts. Smaller values make near misses count more."
    )
    sizes: tuple[int, ...] = option(
        (),
        parse=sizes,
        metavar="SIZES",
        help="Matryoshka: train the first numbers of an embedding to be embeddings too, for example 384,128,64.",
    )

    def of_scores(self, targets: Targets, scores: Numbers) -> tuple[float, Numbers]:
        loss, slopes = 0.0, np.zeros(scores.shape, np.float32)
        for size in self.sizes or (scores.shape[1],):
            loss += self._of_size(targets, scores[:, :size], slopes[:, :size])
        share = 1 / max(1, len(self.sizes))
        slopes *= np.float32(share)
        return share * loss, slopes

    def _of_size(self, targets: Targets, embeddings: Numbers, slopes: NDArray[np.float32]) -> float:
        """Return the summed loss. `slopes` (S, d) += its derivative by each embedding (S, d)."""
        lengths, units = _units(embeddings)
        of_units, loss = np.zeros_like(units), 0.0
        candidates = _candidates(targets)
        for block in self._blocks(targets, units):
            rows = np.arange(len(block.own))
            top = block.logits.max(1, keepdims=True)
            shares = np.exp(block.logits - top)
            total = shares.sum(1, keepdims=True)
            loss += float((np.log(total[:, 0]) + top[:, 0] - block.logits[rows, block.own]).sum())
            shares /= total
            shares[rows, block.own] -= 1
            shares /= self.contrast
            of_units[block.anchors] += (shares @ units[candidates]).astype(np.float32)
            of_units[candidates] += (shares.T @ units[block.anchors]).astype(np.float32)
        # u = e / |e|
        along = np.einsum("sd,sd->s", units, of_units)[:, None]
        slopes += (of_units - units * along) / lengths
        return loss

    def _blocks(self, targets: Targets, units: NDArray[np.float32]) -> Iterator[_Block]:
        """Yield the anchors, ROWS at a time, with their cosines with all candidates over the temperature."""
        answers = _in_rows(targets)
        anchors, candidates = np.flatnonzero(answers.parts == ANCHOR), _candidates(targets)
        of_example = np.full(int(answers.examples.max(initial=0)) + 1, -1)
        positive = answers.parts[candidates] == POSITIVE
        of_example[answers.examples[candidates[positive]]] = np.flatnonzero(positive)
        against = units[candidates].astype(np.float64).T
        for first in range(0, len(anchors), ROWS):
            some = anchors[first : first + ROWS]
            logits = units[some].astype(np.float64) @ against / self.contrast
            yield _Block(some, of_example[answers.examples[some]], logits)

    def measures(self, targets: Targets, logp: PerTarget) -> Measures:
        """How often an anchor's partner is nearest, and the mean of one over its rank."""
        found, ranks, count = 0, 0.0, 0
        for block in self._blocks(targets, _units(scores_in(logp))[1]):
            mine = block.logits[np.arange(len(block.own)), block.own][:, None]
            rank = 1 + (block.logits > mine).sum(1)
            found, ranks, count = found + int((rank == 1).sum()), ranks + float((1 / rank).sum()), count + len(rank)
        return {"recall_at_1": Measured(found, count), "mrr": Measured(ranks, count)}

    def host_bytes(self, tokens: int) -> int:
        """Embeddings, units and slopes of a step are in memory, and a few blocks of cosines."""
        return 3 * self.pairs * 4 * WIDEST * 3 + 4 * 8 * ROWS * 2 * self.pairs


WIDEST = 1024
"""The width of embeddings for which memory is counted."""


def _in_rows(targets: Targets) -> Answers:
    """Return the texts' parts and examples in the order of the embeddings."""
    answers = targets.answers
    assert answers is not None
    order = targets.sequences
    return Answers(answers.examples[order], answers.parts[order], answers.reference[order])


def _candidates(targets: Targets) -> NDArray[np.intp]:
    return np.flatnonzero(_in_rows(targets).parts >= POSITIVE)


def _units(embeddings: Numbers) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the lengths (S, 1) of embeddings (S, d), and these at length 1."""
    lengths = np.maximum(np.sqrt(np.einsum("sd,sd->s", embeddings, embeddings, dtype=np.float64)), 1e-12)[:, None]
    return lengths.astype(np.float32), (embeddings / lengths).astype(np.float32)


OBJECTIVE = Contrastive
