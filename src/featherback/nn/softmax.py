"""What a pass over the vocabulary finds, and what follows from it: log-probabilities, and how gradients are composed.

See docs/derivations/loss.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from featherback.data.batch import Targets
from featherback.engine.backend.protocol import Array
from featherback.nn.context import Context
from featherback.nn.objectives.base import Numbers, PerTarget

ROWS = 256
"""Supervised tokens whose loss is finished at a time."""

Score = Callable[[PerTarget], PerTarget | None]
"""Log-probabilities -> the derivative of what is minimised by each; None: it is not known yet."""


@dataclass(frozen=True)
class Softmax:
    """What a pass over the vocabulary finds of n supervised rows: the online softmax's state, and what else is read."""

    reference: Array  # (n,)
    sum: Array  # (n,)
    target_logit: Array  # (n,)
    further: Array | None  # (E,), the logits of further targets, if there are any
    logits: Array | None  # (n,), the sum of a row's logits, if it is wanted

    @classmethod
    def start(cls, ctx: Context, targets: Targets, over_vocabulary: bool) -> Softmax:
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
        """A tile's logits (n, tile), which are capped afterwards where their sums are wanted."""
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
        """Of all targets, in double."""
        with ctx.frame():
            losses = ctx.floats("loss", len(targets.rows))
            ctx.ops.cross_entropy_finish(self.reference, self.sum, self.target_logit, losses, softcap=softcap)
            first = -ctx.ops.to_host(losses)
        if self.further is None and self.logits is None:
            return PerTarget(first, np.empty(0))
        sums = ctx.ops.to_host(self.target_logit) - first  # the logarithms of the rows' sums of exponentials
        further = self.further_logits(ctx, softcap) - sums[targets.further_rows]
        mean = 0.0 if self.logits is None else ctx.ops.to_host(self.logits) / vocabulary - sums
        return PerTarget(first, further, mean)

    def further_logits(self, ctx: Context, softcap: float) -> Numbers:
        """(E,), capped."""
        if self.further is None:
            return np.empty(0)
        logits = ctx.ops.to_host(self.further)
        return softcap * np.tanh(logits / softcap) if softcap else logits

    def slopes(self, ctx: Context, softcap: float) -> tuple[Numbers | float, Numbers]:
        """Of the cap, at the logits of first (n,) and further (E,) targets."""
        further = self.further_logits(ctx, softcap)
        if not softcap:
            return 1.0, np.ones(len(further))
        return 1 - np.square(ctx.ops.to_host(self.target_logit) / softcap), 1 - np.square(further / softcap)


@dataclass(frozen=True)
class Weights:
    """How the gradient of a row's hidden state is composed, each row of W times the slope of its logit's cap:

    cross * (gradient of - log p of its first target) + first * W[its first target] + the sum over its further targets
    of further * W[target] + mean * (the sum over the vocabulary of W[v])
    """

    cross: Numbers | float  # a float: all rows have it in common
    first: Numbers | float  # a float: it is 0, as what follows is
    further: Numbers  # (E,)
    mean: Numbers | float

    @classmethod
    def of(
        cls, ctx: Context, slopes: PerTarget, targets: Targets, softmax: Softmax, vocabulary: int, softcap: float
    ) -> Weights:
        """From what is minimised, scaled, derived by each log-probability."""
        if softmax.further is None and softmax.logits is None:
            return cls(-slopes.first, 0.0, np.empty(0), 0.0)
        beside = np.zeros(len(targets.rows)) + slopes.mean
        np.add.at(beside, targets.further_rows, slopes.further)
        of_first, of_further = softmax.slopes(ctx, softcap)
        further, mean = slopes.further * of_further, slopes.mean / vocabulary
        return cls(-(slopes.first + beside), -beside * of_first, further, mean)

    @property
    def scale(self) -> float:
        """`cross` if it is a number; else 1, and the rows are still to be weighed."""
        return self.cross if isinstance(self.cross, float) else 1.0


UNWEIGHED = Weights(1.0, 0.0, np.empty(0), 0.0)


def placed(ctx: Context, values: Numbers | float, n: int) -> Array:
    """Numbers of n rows as an array (n,) of the current frame."""
    array = ctx.floats("weights of rows", n)
    ctx.ops.from_host(np.broadcast_to(values, n), array)
    return array


@dataclass(frozen=True)
class HeadPass:
    """What the gradient of the head's weight is computed from, once the loss is known: `methods.whole.head`."""

    hidden: Array  # (n, D), an operand: the normed supervised rows
    softmax: Softmax
    targets: Targets
    weights: Weights
