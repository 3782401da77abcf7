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

ROWS = 16
"""Texts that are compared with all others at a time."""
PACKED = 2 << 20
"""Bytes in which NumPy's products hold packed parts of their matrices; they stay with the process."""


def checked_sizes(written: Any) -> str:
    """Return "384,128" with the largest first. Raises UnclearError if these are no whole numbers."""
    try:
        found = sorted({int(part) for part in str(written).split(",") if part.strip()}, reverse=True)
    except ValueError:
        raise UnclearError("write whole numbers, such as 384,128,64") from None
    if min(found, default=1) < 1:
        raise UnclearError("write sizes of 1 and more, such as 384,128,64")
    return ",".join(map(str, found))


Rows = NDArray[np.intp] | slice


class _Block(NamedTuple):
    """Some anchors compared with all candidates."""

    anchors: Rows  # m rows of the embeddings
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
    sizes: str = option(
        "",
        parse=checked_sizes,
        metavar="SIZES",
        help="Matryoshka: train the first numbers of an embedding to be embeddings too, for example 384,128,64.",
    )

    def of_scores(self, targets: Targets, scores: Numbers) -> tuple[float, Numbers]:
        chosen = [int(size) for size in self.sizes.split(",") if size] or [scores.shape[1]]
        if chosen == [scores.shape[1]]:
            return self._of_size(targets, scores)
        total, slopes = 0.0, np.zeros_like(scores)
        for size in chosen:
            loss, of_size = self._of_size(targets, scores[:, :size].copy())
            total += loss / len(chosen)
            slopes[:, :size] += of_size / np.float32(len(chosen))
        return total, slopes

    def _of_size(self, targets: Targets, embeddings: Numbers) -> tuple[float, Numbers]:
        """Return the summed loss, and its derivative by each embedding (S, d). The embeddings become units in place."""
        lengths, units = _units(embeddings, embeddings)
        slopes, loss, others = np.zeros_like(units), 0.0, _together(_candidates(targets))
        for block in self._blocks(targets, units):
            rows = np.arange(len(block.own))
            top = block.logits.max(1, keepdims=True)
            own = block.logits[rows, block.own]
            shares = np.exp(block.logits - top)
            total = shares.sum(1, keepdims=True)
            loss += float((np.log(total[:, 0]) + top[:, 0] - own).sum())
            shares /= total
            shares[rows, block.own] -= 1
            shares /= self.contrast
            narrow = shares.astype(np.float32)
            slopes[block.anchors] += narrow @ units[others]
            slopes[others] += narrow.T @ units[block.anchors]
        # u = e / |e|
        along = np.einsum("sd,sd->s", units, slopes)[:, None]
        for first in range(0, len(units), ROWS):
            some = slice(first, first + ROWS)
            slopes[some] = (slopes[some] - units[some] * along[some]) / lengths[some]
        return loss, slopes

    def _blocks(self, targets: Targets, units: Numbers) -> Iterator[_Block]:
        """Yield the anchors, ROWS at a time, with their cosines with all candidates over the temperature."""
        answers = _in_rows(targets)
        anchors, candidates = np.flatnonzero(answers.parts == ANCHOR), _candidates(targets)
        of_example = np.full(int(answers.examples.max(initial=0)) + 1, -1)
        positive = answers.parts[candidates] == POSITIVE
        of_example[answers.examples[candidates[positive]]] = np.flatnonzero(positive)
        against = units[_together(candidates)].T
        for first in range(0, len(anchors), ROWS):
            some = anchors[first : first + ROWS]
            logits = (units[_together(some)] @ against).astype(np.float64) / self.contrast
            yield _Block(_together(some), of_example[answers.examples[some]], logits)

    def measures(self, targets: Targets, logp: PerTarget) -> Measures:
        """How often an anchor's partner is nearest, and the mean of one over its rank."""
        found, ranks, count = 0, 0.0, 0
        for block in self._blocks(targets, _units(scores_in(logp))[1]):
            mine = block.logits[np.arange(len(block.own)), block.own][:, None]
            rank = 1 + (block.logits > mine).sum(1)
            found, ranks, count = found + int((rank == 1).sum()), ranks + float((1 / rank).sum()), count + len(rank)
        return {"recall_at_1": Measured(found, count), "mrr": Measured(ranks, count)}

    def host_bytes(self, tokens: int, width: int) -> int:
        """Embeddings and slopes of a step are in memory, half as much for sums, and some blocks of cosines."""
        return 5 * 4 * self.pairs * width + 6 * 8 * ROWS * self.pairs + PACKED


def _in_rows(targets: Targets) -> Answers:
    """Return the texts' parts and examples in the order of the embeddings."""
    answers = targets.answers
    assert answers is not None
    order = targets.sequences
    return Answers(answers.examples[order], answers.parts[order], answers.reference[order])


def _candidates(targets: Targets) -> NDArray[np.intp]:
    return np.flatnonzero(_in_rows(targets).parts >= POSITIVE)


def _together(rows: NDArray[np.intp]) -> Rows:
    """Return rows as a slice if they are evenly spaced, because indexing with a slice copies nothing."""
    steps = np.unique(np.diff(rows))
    if len(rows) < 2 or len(steps) != 1 or steps[0] < 1:
        return rows
    return slice(int(rows[0]), int(rows[-1]) + 1, int(steps[0]))


def _units(embeddings: Numbers, out: Numbers | None = None) -> tuple[Numbers, Numbers]:
    """Return the lengths (S, 1) of embeddings (S, d), and these at length 1, in their type: in `out` if it is given."""
    lengths = np.sqrt(np.einsum("sd,sd->s", embeddings, embeddings, dtype=np.float64))[:, None]
    lengths = np.maximum(lengths, 1e-12).astype(embeddings.dtype)
    return lengths, np.divide(embeddings, lengths, out=out)


OBJECTIVE = Contrastive
