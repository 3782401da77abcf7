"""The online softmax over the vocabulary, and what follows from it: log-probabilities, and the weights of gradients.

See docs/derivations/loss.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    leaves_out: bool = False  # `p` is 0 at further targets too, which are many

    @classmethod
    def start(cls, ctx: Context, targets: Targets, over_vocabulary: bool, leaves_out: bool = False) -> Softmax:
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
        return cls(reference, total, target_logit, further, logits, leaves_out)

    def add(
        self, ctx: Context, targets: Targets, first: int, logits: Array, softcap: float, p: Array | None = None,
        dh: Array | None = None,
    ) -> None:  # fmt: skip
        """Add a tile's logits (n, tile). They are capped in place afterwards if their sums are wanted."""
        ctx.ops.cross_entropy_tile(
            logits, first, targets.ids, self.reference, self.sum, self.target_logit, p, dh, softcap=softcap
        )
        if self.further is not None:
            columns = targets.further_ids - first
            ctx.ops.pick(logits, targets.further_rows, columns, self.further)
            if self.leaves_out and p is not None:
                ctx.ops.clear(p, targets.further_rows, columns)
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
class View:
    """The softmax of all logits divided by a temperature, and the targets whose log-probabilities it gives."""

    targets: Targets
    softmax: Softmax
    temperature: float = 1.0

    @classmethod
    def all_of(cls, ctx: Context, targets: Targets, over_vocabulary: bool, temperature: float | None) -> list[View]:
        """Return the views for an objective: one, or two if a teacher's tokens have a temperature of their own.

        `temperature`: that of further targets if they are a teacher's likely tokens, otherwise None.
        """
        if temperature is None or temperature == 1:
            return [cls(targets, Softmax.start(ctx, targets, over_vocabulary, temperature is not None))]
        assert not over_vocabulary
        first, further = targets.apart()
        soft = Softmax.start(ctx, further, False, leaves_out=True)
        return [cls(first, Softmax.start(ctx, first, False)), cls(further, soft, temperature)]

    def add(
        self, ctx: Context, first: int, logits: Array, softcap: float, p: Array | None = None, dh: Array | None = None
    ) -> None:
        """Add a tile's logits (n, tile), which are divided by the temperature in place."""
        if self.temperature != 1:
            ctx.ops.scale(logits, 1 / self.temperature)
        self.softmax.add(ctx, self.targets, first, logits, softcap / self.temperature, p, dh)

    def log_probs(self, ctx: Context, vocabulary: int, softcap: float) -> PerTarget:
        """Return the log-probabilities of its targets, in float64."""
        return self.softmax.log_probs(ctx, self.targets, vocabulary, softcap / self.temperature)

    def sorted(
        self, ctx: Context, ids: NDArray[np.int32], logits: Array, softcap: float
    ) -> tuple[NDArray[np.int32], Numbers]:
        """Return tokens `ids` (n, k) with the given `logits` and their log-probabilities, the most likely first."""
        n, k = ids.shape
        rows = np.repeat(np.arange(n), k)
        targets = replace(self.targets, further_rows=rows, further_ids=ids.reshape(-1))
        softmax = replace(self.softmax, further=logits.reshape(n * k))
        logp = replace(self, targets=targets, softmax=softmax).log_probs(ctx, 0, softcap).further.reshape(n, k)
        order = np.argsort(-logp, axis=1, kind="stable")
        return np.take_along_axis(ids, order, 1), np.take_along_axis(logp, order, 1)


def joined(found: Sequence[PerTarget]) -> PerTarget:
    """Return the log-probabilities of the first view, with those of further targets from the last one."""
    return replace(found[0], further=found[-1].further)


def divided(slopes: PerTarget, views: Sequence[View]) -> list[PerTarget]:
    """Return the derivatives with respect to the log-probabilities of each view, over its temperature."""
    if len(views) == 1:
        return [slopes]
    return [replace(slopes, further=np.empty(0)), PerTarget(0.0, slopes.further / views[1].temperature)]


@dataclass(frozen=True)
class Weights:
    """The weights that compose the gradient of a row's hidden state:

    cross * (gradient of - log p of its first target) + first * W[its first target] + sum over its further targets of
    further * W[target] + mean * (sum over the vocabulary of W[v]), each row of W multiplied by the slope of its logit's
    cap. If the softmax leaves further targets out, `further` contains their share of the first term.
    """

    cross: Numbers | float  # a float if it is the same for all rows
    first: Numbers | float  # a float only if it and the following weights are 0
    further: Numbers  # (E,)
    mean: Numbers | float

    @classmethod
    def of(cls, ctx: Context, slopes: PerTarget, logp: PerTarget, view: View, vocabulary: int, cap: float) -> Weights:
        """Return the weights for the scaled loss's derivative with respect to each log-probability, `slopes`."""
        targets, softmax, softcap = view.targets, view.softmax, cap / view.temperature
        if softmax.further is None and softmax.logits is None:
            return cls(-slopes.first, 0.0, np.empty(0), 0.0)
        beside = np.zeros(len(targets.rows)) + slopes.mean
        np.add.at(beside, targets.further_rows, slopes.further)
        of_first, of_further = softmax.slopes(ctx, softcap)
        cross, further = -(slopes.first + beside), slopes.further
        if softmax.leaves_out:
            rows = targets.further_rows
            others = targets.further_ids != targets.ids[rows]  # the first target's share is added with its own row
            further = further + cross[rows] * np.exp(logp.further) * others
        return cls(cross, -beside * of_first, further * of_further, slopes.mean / vocabulary)

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
