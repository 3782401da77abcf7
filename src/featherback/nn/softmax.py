"""The online softmax over the vocabulary, and what follows from it: log-probabilities, and the weights of gradients.

See docs/derivations/loss.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.data.batch import Targets
from featherback.engine.backend.protocol import Array
from featherback.nn.context import Context
from featherback.nn.objectives.base import Numbers, PerTarget

ROWS = 256
"""Number of supervised tokens whose loss is finished at a time."""

Score = Callable[[PerTarget], PerTarget | None]
"""Maps log-probabilities to the loss's derivative with respect to each, or to None if that is not known yet."""


@dataclass(frozen=True)
class Softmax:
    """The state of the online softmax of n supervised rows, and the other logits that an objective needs."""

    reference: Array  # (n,), the offset of the exponents, near the maximum of a row's logits
    sum: Array  # (n,), the sum of exp(logit - reference), without the target's
    target_logit: Array  # (n,)
    further: Array | None  # (E,), the logits of further targets, if there are any
    logits: Array | None  # (n,), the sum of a row's logits, if it is wanted

    @classmethod
    def start(cls, ctx: Context, targets: Targets, over_vocabulary: bool) -> Softmax:
        """Return the initial state: reference and target logits -inf, sums 0."""
        n, count = len(targets.rows), len(targets.further_rows)
        names = {"softmax reference": -np.inf, "softmax sum": 0.0, "target logits": -np.inf}
        reference, total, target_logit = (ctx.floats(name, n) for name in names)
        for array, value in zip((reference, total, target_logit), names.values()):
            ctx.ops.fill(array, value)
        further = ctx.floats("logits of further targets", count) if count else None
        logits = ctx.floats("sums of logits", n) if over_vocabulary else None
        if logits is not None:
            ctx.ops.fill(logits, 0)
        return cls(reference, total, target_logit, further, logits)

    def add(
        self, ctx: Context, targets: Targets, first: int, logits: Array, softcap: float, p: Array | None = None,
        dh: Array | None = None,
    ) -> None:  # fmt: skip
        """Add a tile's logits (n, tile). They are capped in place afterwards if their sums are wanted."""
        ctx.ops.cross_entropy_tile(
            logits, first, targets.ids, self.reference, self.sum, self.target_logit, p, dh, softcap=softcap
        )
        if self.further is not None:
            ctx.ops.pick(logits, targets.further_rows, targets.further_ids - first, self.further)
        if self.logits is not None:
            if softcap:
                ctx.ops.softcap(logits, softcap)
            ctx.ops.add_row_sums(logits, self.logits)

    def log_probs(self, ctx: Context, targets: Targets, vocabulary: int, softcap: float) -> PerTarget:
        """Return the log-probabilities of all targets, in float64."""
        with ctx.frame():
            losses = ctx.floats("loss", len(targets.rows))
            ctx.ops.cross_entropy_finish(self.reference, self.sum, self.target_logit, losses, softcap=softcap)
            first = -_numbers(ctx, losses)
        if self.further is None and self.logits is None:
            return PerTarget(first, np.empty(0))
        sums = _numbers(ctx, self.target_logit) - first  # the log of each row's sum of exponentials
        further = self.further_logits(ctx, softcap) - sums[targets.further_rows]
        mean = 0.0 if self.logits is None else _numbers(ctx, self.logits) / vocabulary - sums
        return PerTarget(first, further, mean)

    def further_logits(self, ctx: Context, softcap: float) -> Numbers:
        """Return the capped logits of further targets (E,)."""
        if self.further is None:
            return np.empty(0)
        logits = _numbers(ctx, self.further)
        return softcap * np.tanh(logits / softcap) if softcap else logits

    def slopes(self, ctx: Context, softcap: float) -> tuple[Numbers | float, Numbers]:
        """Return the derivatives of the soft cap at the logits of first (n,) and further (E,) targets."""
        further = self.further_logits(ctx, softcap)
        if not softcap:
            return 1.0, np.ones(len(further))
        return 1 - np.square(_numbers(ctx, self.target_logit) / softcap), 1 - np.square(further / softcap)


@dataclass(frozen=True)
class Weights:
    """The weights that compose the gradient of a row's hidden state:

    cross * (gradient of - log p of its first target) + first * W[its first target] + sum over its further targets of
    further * W[target] + mean * (sum over the vocabulary of W[v]), each row of W multiplied by the slope of its logit's
    cap
    """

    cross: Numbers | float  # a float if it is the same for all rows
    first: Numbers | float  # a float only if it and the following weights are 0
    further: Numbers  # (E,)
    mean: Numbers | float

    @classmethod
    def of(
        cls, ctx: Context, slopes: PerTarget, targets: Targets, softmax: Softmax, vocabulary: int, softcap: float
    ) -> Weights:
        """Return the weights for `slopes`: the scaled loss's derivative with respect to each log-probability."""
        if softmax.further is None and softmax.logits is None:
            return cls(-slopes.first, 0.0, np.empty(0), 0.0)
        beside = np.zeros(len(targets.rows)) + slopes.mean
        np.add.at(beside, targets.further_rows, slopes.further)
        of_first, of_further = softmax.slopes(ctx, softcap)
        further, mean = slopes.further * of_further, slopes.mean / vocabulary
        return cls(-(slopes.first + beside), -beside * of_first, further, mean)

    @property
    def scale(self) -> float:
        """`cross` if it is a number, else 1: then rows are still to be multiplied by it."""
        return self.cross if isinstance(self.cross, float) else 1.0


UNSCALED = Weights(1.0, 0.0, np.empty(0), 0.0)


def placed(ctx: Context, values: NDArray[np.floating[Any]] | float, n: int) -> Array:
    """Return numbers of n rows as an array (n,) of the current frame."""
    array = ctx.floats("weights of rows", n)
    with ctx.backend.host(array, write=True) as out:
        out[...] = values
    return array


def _numbers(ctx: Context, x: Array) -> Numbers:
    """Return the values of an array (n,) in float64."""
    with ctx.backend.host(x) as values:
        return np.array(values, np.float64)


@dataclass(frozen=True)
class HeadPass:
    """The inputs for the gradient of the head's weight, once the loss is known (`methods.whole.head`)."""

    hidden: Array  # (n, D), an operand: the normed supervised rows
    softmax: Softmax
    targets: Targets
    weights: Weights
