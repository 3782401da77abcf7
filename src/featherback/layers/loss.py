"""The final norm, the output head and the log-probabilities, fused and tiled over the vocabulary: logits never exist.

Only supervised tokens reach the head. One pass: a tile's logits update an online softmax, and their exponentials,
still unnormalised, are multiplied with the same rows of the head; the sum is normalised at the end. The target's own
term is left out of that sum and added as (p - 1) W[target], which keeps small gradients exact in bf16.
What an objective makes of the log-probabilities decides how the rows are weighed: docs/derivations/loss.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.backend.protocol import Array, Matrix
from featherback.data.batch import Targets
from featherback.layers.context import Context
from featherback.layers.linear import norm_gradient
from featherback.layers.moved import Spot, product, vector
from featherback.layers.objectives.base import Numbers, PerTarget
from featherback.layers.span import pieces
from featherback.parameters.roles import HEAD, NORM
from featherback.weights.matrix import Matrix as StoredMatrix

ROWS = 256
"""Supervised tokens whose loss is finished at a time."""

Score = Callable[[PerTarget], PerTarget | None]
"""Log-probabilities -> the derivative of what is minimised by each; None: it is not known yet."""


class HeadSource(Protocol):
    """Where the rows of the head come from."""

    def rows(self, stored: StoredMatrix, first: int, last: int) -> AbstractContextManager[StoredMatrix]:
        """Rows [first, last), visited in order."""

    def gather(self, stored: StoredMatrix, ids: NDArray[np.int32], out: Array) -> None:
        """out (n, D) = rows `ids`, dequantised."""


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
    def of(cls, ctx: Context, slopes: PerTarget, targets: Targets, softmax: Softmax, head: Head) -> Weights:
        """From what is minimised, scaled, derived by each log-probability."""
        if softmax.further is None and softmax.logits is None:
            return cls(-slopes.first, 0.0, np.empty(0), 0.0)
        beside = np.zeros(len(targets.rows)) + slopes.mean
        np.add.at(beside, targets.further_rows, slopes.further)
        of_first, of_further = softmax.slopes(ctx, head.softcap)
        further, mean = slopes.further * of_further, slopes.mean / head.weight.rows
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
    """What the gradient of the head's weight is computed from, once the loss is known, a tile of the vocabulary at a
    time: as often as it is read, logits are computed again."""

    hidden: Array  # (n, D), an operand: the normed supervised rows
    softmax: Softmax
    targets: Targets
    weights: Weights

    def gradient(self, ctx: Context, head: Head, source: HeadSource, height: int) -> Iterator[tuple[slice, Array]]:
        """(rows, their gradient (height or fewer, D)), in order."""
        (n, width), softmax, weights, ids = self.hidden.shape, self.softmax, self.weights, self.targets.ids
        with ctx.frame():
            shares, pulls = ctx.floats("shares", n), ctx.floats("pulls of the targets", n)
            ctx.ops.softmax_shares(
                softmax.reference, softmax.sum, softmax.target_logit, weights.scale, shares, pulls, softcap=head.softcap
            )
            if not isinstance(weights.cross, float):
                ctx.ops.scale_rows(shares.reshape(n, 1), placed(ctx, weights.cross, n))
            weighted, operand = (ctx.floats("hidden, weighted", n, width), ctx.operands("hidden, weighted", n, width))
            ctx.ops.cast(self.hidden, weighted)
            ctx.ops.scale_rows(weighted, shares)
            ctx.ops.cast(weighted, operand)
            beside = None if isinstance(weights.first, float) else Beside.of(ctx, self)
            again = Softmax.start(ctx, self.targets, over_vocabulary=False)
            ctx.ops.cast(softmax.reference, again.reference)
            for first, last in ctx.tiles(head.weight.rows, height):
                with ctx.frame():
                    gradient = ctx.floats("gradient of the head, tile", last - first, width)
                    for f, logits, _ in head.logits_of(ctx, self.hidden, source, first, last):
                        p, turned = ctx.operands("p", *logits.shape), ctx.operands("p^T", *logits.shape[::-1])
                        again.add(ctx, self.targets, f, logits, head.softcap, p)
                        ctx.ops.transpose(p, turned)
                        part = gradient[f - first : f - first + logits.shape[1]]
                        ctx.ops.linear_backward(turned, ctx.ops.dense(operand), part)
                        if beside is not None and beside.evenly is not None and head.softcap:
                            beside.add_capped(ctx, logits, head.softcap, p, turned, part)
                    ctx.ops.add_rows(weighted, ids - first, gradient, factors=pulls)
                    if beside is not None:
                        beside.add(ctx, self, first, head.softcap, gradient)
                    yield slice(first, last), gradient


class Beside(NamedTuple):
    """The parts of a gradient of the head's weight that cross-entropy does not have."""

    hidden: Array  # (n, D)
    first: Array  # (n,), of `Weights`
    evenly: Array | None  # (n, D), an operand: what a row gives to each row of W; with a cap, times its slope
    total: Array | None  # (1, D), the sum of that; with a cap it is not used

    @classmethod
    def of(cls, ctx: Context, done: HeadPass) -> Beside:
        n, width = done.hidden.shape
        hidden, first = ctx.floats("hidden", n, width), placed(ctx, done.weights.first, n)
        evenly = total = None
        if done.softmax.logits is not None:
            evenly, total = ctx.operands("hidden, spread evenly", n, width), ctx.floats("their sum", 1, width)
            ctx.ops.cast(done.hidden, hidden)
            ctx.ops.scale_rows(hidden, placed(ctx, done.weights.mean, n))
            ctx.ops.cast(hidden, evenly)
            ctx.ops.linear_backward(filled(ctx, 1, n), ctx.ops.dense(evenly), total)
        ctx.ops.cast(done.hidden, hidden)
        return cls(hidden, first, evenly, total)

    def add(self, ctx: Context, done: HeadPass, start: int, softcap: float, gradient: Array) -> None:
        """To the gradient (height, D) of the rows of W from `start` on, all that is known without logits."""
        targets, stop = done.targets, start + len(gradient)
        ctx.ops.add_rows(self.hidden, targets.ids - start, gradient, factors=self.first)
        mine = np.flatnonzero((targets.further_ids >= start) & (targets.further_ids < stop))
        for first, last in pieces(len(mine), ROWS):
            with ctx.frame():
                part = mine[first:last]
                rows = ctx.floats("hidden of further targets", len(part), gradient.shape[1])
                ctx.ops.take_rows(self.hidden, targets.further_rows[part], rows)
                factors = placed(ctx, done.weights.further[part], len(part))
                ctx.ops.add_rows(rows, targets.further_ids[part] - start, gradient, factors=factors)
        if self.total is not None and not softcap:
            ctx.ops.scale_columns(gradient, None, gradient, bias=self.total.reshape(gradient.shape[1]))

    def add_capped(self, ctx: Context, logits: Array, softcap: float, p: Array, turned: Array, part: Array) -> None:
        """To the gradient (tile, D) of a tile of W, what each row of W gets, by the slopes of its logits (n, tile)."""
        ctx.ops.softcap(logits, softcap)
        ctx.ops.capped_slopes(logits, softcap)
        ctx.ops.cast(logits, p)
        ctx.ops.transpose(p, turned)
        ctx.ops.linear_backward(turned, ctx.ops.dense(self.evenly), part, accumulate=True)


def filled(ctx: Context, *shape: int) -> Array:
    """An operand of ones."""
    floats, ones = ctx.floats("one", *shape), ctx.operands("ones", *shape)
    ctx.ops.fill(floats, 1)
    ctx.ops.cast(floats, ones)
    return ones


class HeadSink(Protocol):
    """Trains the head's weight and the norm before it."""

    def head(self, ctx: Context, done: HeadPass) -> None:
        """The loss is known; the gradient of the head's weight may be read until the step ends."""

    def vector(self, ctx: Context, name: str, gradient: Array) -> None:
        """Of the norm."""


@dataclass(frozen=True)
class Head:
    """logits = softcap(rms(x) g / c W^T). `norm` g / c (D,), `weight` W (V, D), as stored; `softcap` 0: none."""

    norm: Array
    weight: StoredMatrix
    eps: float
    softcap: float = 0.0
    divisor: float = 1.0  # c

    def log_probs(
        self, ctx: Context, x: Array, targets: Targets, source: HeadSource, *, over_vocabulary: bool = False
    ) -> PerTarget:
        """Of the targets, from the final residual stream x (T, D)."""
        if not targets.rows.size:
            return PerTarget(np.empty(0), np.empty(0))
        with ctx.frame():
            hidden = self._hidden(ctx, x, targets.rows)
            softmax = Softmax.start(ctx, targets, over_vocabulary)
            for first, logits, _ in self.logits_of(ctx, hidden, source):
                softmax.add(ctx, targets, first, logits, self.softcap)
            return softmax.log_probs(ctx, targets, self.weight.rows, self.softcap)

    def gradient(
        self, ctx: Context, x: Array, targets: Targets, source: HeadSource, score: Score, *,
        over_vocabulary: bool = False, sink: HeadSink | None = None, apart: Array | None = None,
    ) -> None:  # fmt: skip
        """x (T, D) becomes the gradient with respect to it of that of which `score` gives the derivatives.

        If these are not known yet: of the sum of - log p of all first targets; and `apart` (E, D) becomes that of
        log p of each further target less log p of its row's first one.
        With a `sink`, which trains norm and weight, what it needs for that stays in the caller's frame.
        """
        rows = targets.rows
        if not rows.size:
            score(PerTarget(np.empty(0), np.empty(0)))
            ctx.ops.fill(x, 0)
            return
        with ctx.frame() if sink is None else nullcontext():
            hidden, softmax = self._hidden(ctx, x, rows), Softmax.start(ctx, targets, over_vocabulary)
            weights = self._backward(ctx, x, targets, hidden, softmax, source, score, sink, apart)
            if sink is not None:
                sink.head(ctx, HeadPass(hidden, softmax, targets, weights))
        ctx.ops.zero_rows(x, np.delete(np.arange(len(x)), rows))

    def _backward(
        self, ctx: Context, x: Array, targets: Targets, hidden: Array, softmax: Softmax, source: HeadSource,
        score: Score, sink: HeadSink | None, apart: Array | None,
    ) -> Weights:  # fmt: skip
        """The supervised rows of x become their gradient, composed as the result says."""
        rows, (n, width) = targets.rows, hidden.shape
        spread = 0 if softmax.logits is None else n if self.softcap else 1  # rows that sum up all of W
        with ctx.frame():
            dg = None
            if sink is not None:
                dg = ctx.floats("gradient of the norm", *self.norm.shape)
                ctx.ops.fill(dg, 0)
            dh = ctx.floats("dhidden", n + spread, width)
            ctx.ops.fill(dh, 0)
            for first, logits, weight in self.logits_of(ctx, hidden, source):
                exponentials = ctx.operands("exponentials tile", n + spread, logits.shape[1])
                softmax.add(ctx, targets, first, logits, self.softcap, exponentials[:n], dh[:n])
                if spread:
                    ctx.ops.capped_slopes(logits, self.softcap)
                    ctx.ops.cast(logits[:spread], exponentials[n:])
                ctx.ops.linear_backward(exponentials, weight, dh, accumulate=True)
            slopes = score(softmax.log_probs(ctx, targets, self.weight.rows, self.softcap))
            weights = UNWEIGHED if slopes is None else Weights.of(ctx, slopes, targets, softmax, self)
            if slopes is None and apart is not None:
                self._set_apart(ctx, x, targets, softmax, source, apart)
            for start, stop in ctx.tiles(n, ROWS):
                part, chosen = slice(start, stop), rows[start:stop]
                with ctx.frame():
                    target_rows = ctx.floats("target rows", stop - start, width)
                    source.gather(self.weight, targets.ids[part], target_rows)
                    losses = ctx.floats("loss", stop - start)
                    ctx.ops.cross_entropy_finish(
                        softmax.reference[part], softmax.sum[part], softmax.target_logit[part], losses, target_rows,
                        dh[part], weights.scale, softcap=self.softcap,
                    )  # fmt: skip
                    self._weigh(ctx, weights, targets, part, target_rows, dh, source)
                    # hidden = rms(x) g: the rows of x are read one last time, then hold their gradient
                    before, gradient = target_rows, ctx.floats("gradient rows", stop - start, width)
                    ctx.ops.take_rows(x, chosen, before)
                    ctx.ops.fill(gradient, 0)
                    if dg is not None:
                        norm_gradient(ctx, dh[part], before, self.eps, dg)
                    ctx.ops.rms_norm_backward(dh[part], before, self.norm, self.eps, gradient)
                    ctx.ops.put_rows(gradient, chosen, x)
            if sink is not None:
                ctx.ops.scale(dg, 1 / self.divisor)  # of g itself
                sink.vector(ctx, NORM, dg)
        return weights

    def _weigh(
        self, ctx: Context, weights: Weights, targets: Targets, part: slice, target_rows: Array, dh: Array,
        source: HeadSource,
    ) -> None:  # fmt: skip
        """Some rows of dh, those of the first targets' - log p, become their gradients; `target_rows` is used up."""
        n, own = part.stop - part.start, dh[part]
        if not isinstance(weights.cross, float):
            ctx.ops.scale_rows(own, placed(ctx, weights.cross[part], n))
        if isinstance(weights.first, float):
            return
        ctx.ops.scale_rows(target_rows, placed(ctx, weights.first[part], n))
        ctx.ops.scale_columns(target_rows, None, own, accumulate=True)
        mine = np.searchsorted(targets.further_rows, (part.start, part.stop)).tolist()
        for first, last in pieces(mine[1], ROWS, mine[0]):
            with ctx.frame():
                more = ctx.floats("rows of further targets", last - first, dh.shape[1])
                source.gather(self.weight, targets.further_ids[first:last], more)
                places = (targets.further_rows[first:last] - part.start).astype(np.int32)
                factors = placed(ctx, weights.further[first:last], last - first)
                ctx.ops.add_rows(more, places, own, factors=factors)
        spread, all_rows = len(dh) - len(targets.rows), dh[len(targets.rows) :]
        if spread:
            evenly = all_rows[part] if self.softcap else target_rows
            if not self.softcap:
                ctx.ops.fill(evenly, 0)
                ctx.ops.scale_columns(evenly, None, evenly, bias=all_rows.reshape(dh.shape[1]))
            mean = np.broadcast_to(weights.mean, len(targets.rows))
            ctx.ops.scale_rows(evenly, placed(ctx, mean[part], n))
            ctx.ops.scale_columns(evenly, None, own, accumulate=True)

    def _set_apart(
        self, ctx: Context, x: Array, targets: Targets, softmax: Softmax, source: HeadSource, out: Array
    ) -> None:
        """out (E, D) = the gradient of log p of each further target less log p of its row's first one."""
        of_first, of_further = softmax.slopes(ctx, self.softcap)
        of_first = np.broadcast_to(of_first, len(targets.rows))
        for first, last in pieces(len(out), ROWS):
            with ctx.frame():
                mine, n = targets.further_rows[first:last], last - first
                more, less = (ctx.floats(f"rows of {which} targets", n, x.shape[1]) for which in ("further", "first"))
                source.gather(self.weight, targets.further_ids[first:last], more)
                source.gather(self.weight, targets.ids[mine], less)
                ctx.ops.scale_rows(more, placed(ctx, of_further[first:last], n))
                ctx.ops.scale_rows(less, placed(ctx, -of_first[mine], n))
                ctx.ops.scale_columns(less, None, more, accumulate=True)
                before = less
                ctx.ops.take_rows(x, targets.rows[mine], before)
                ctx.ops.fill(out[first:last], 0)
                ctx.ops.rms_norm_backward(more, before, self.norm, self.eps, out[first:last])

    def logits(self, ctx: Context, x: Array, source: HeadSource, out: Array) -> None:
        """out (T, V) from the final residual stream x (T, D)."""
        with ctx.frame():
            hidden = ctx.operands("hidden", *x.shape)
            ctx.ops.rms_norm(x, self.norm, self.eps, hidden)
            for first, last in ctx.tiles(self.weight.rows, ctx.vocab_tile):
                with source.rows(self.weight, first, last) as part:
                    ctx.ops.linear(hidden, ctx.backend.matrix(part), out[:, first:last])
            if self.softcap:
                ctx.ops.softcap(out, self.softcap)

    def _hidden(self, ctx: Context, x: Array, rows: NDArray[np.intp]) -> Array:
        """The normed supervised rows (n, D), an operand."""
        hidden = ctx.operands("hidden", len(rows), x.shape[1])
        norm = vector(ctx, self.norm, Spot(NORM), self.divisor)
        for start, stop in ctx.tiles(len(rows), ROWS):
            with ctx.frame():
                source = ctx.floats("rows of the residual stream", stop - start, x.shape[1])
                ctx.ops.take_rows(x, rows[start:stop], source)
                ctx.ops.rms_norm(source, norm, self.eps, hidden[start:stop])
        return hidden

    def logits_of(
        self, ctx: Context, hidden: Array, source: HeadSource, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, Array, Matrix]]:
        """(first column, logits (n, tile), rows of the head) of columns [start, stop) (default: to the last), a tile of
        the vocabulary at a time."""
        for first, last in ctx.tiles(self.weight.rows if stop is None else stop, ctx.vocab_tile, start):
            with source.rows(self.weight, first, last) as part, ctx.frame():
                weight = ctx.backend.matrix(part)
                logits = ctx.floats("logits tile", len(hidden), last - first)
                product(ctx, hidden, weight, Spot(HEAD, row=first), logits)
                yield first, logits, weight
