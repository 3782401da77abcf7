"""The final norm, the output head and the log-probabilities, fused and tiled over the vocabulary.

The logits never exist whole, and only supervised tokens reach the head. There is one pass: a tile's logits update an
online softmax, and their unnormalised exponentials are multiplied by the same rows of the head. The sum is normalised
at the end. The target's own term is left out of that sum and added as (p - 1) W[target], which keeps small gradients
exact in bf16. The objective turns log-probabilities into the weight of each row. See docs/derivations/loss.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.data.batch import Targets
from featherback.engine.backend.protocol import Array, Matrix
from featherback.engine.formats.matrix import Matrix as StoredMatrix
from featherback.nn.context import Context
from featherback.nn.linear import norm_gradient
from featherback.nn.objectives.base import PerTarget
from featherback.nn.perturbed import WeightPart, product, vector
from featherback.nn.slots import HEAD, NORM, NORM_BIAS
from featherback.nn.softmax import ROWS, UNSCALED, HeadPass, Score, Softmax, View, Weights, divided, joined, placed
from featherback.nn.span import pieces


class HeadSource(Protocol):
    """The source of the head's rows."""

    def rows(self, stored: StoredMatrix, first: int, last: int) -> AbstractContextManager[StoredMatrix]:
        """Yield rows [first, last). Calls come in order."""

    def gather(self, stored: StoredMatrix, ids: NDArray[np.int32], out: Array) -> None:
        """out (n, D) = rows `ids`, dequantised."""


class HeadSink(Protocol):
    """Trains the head's weight and the norm before it."""

    def head(self, ctx: Context, done: HeadPass) -> None:
        """Take the finished pass. The gradient of the head's weight may be computed until the step ends."""

    def vector(self, ctx: Context, name: str, gradient: Array) -> None:
        """Take the `gradient` (D,), float32, of the norm's weight."""


@dataclass(frozen=True)
class Head:
    """logits = softcap(rms(x) g / c W^T). `norm` is g / c (D,), `weight` W (V, D) as stored; `softcap` 0 means none.

    With a `bias` (D,), b / c, the norm is a LayerNorm: (x - mean) / std g / c + b / c.
    """

    norm: Array
    weight: StoredMatrix
    eps: float
    softcap: float = 0.0
    divisor: float = 1.0  # c
    bias: Array | None = None

    def hidden(self, ctx: Context, x: Array, norm: Array, out: Array) -> None:
        """out (n, D), an operand = the normed x (n, D), float32: what the product with W reads."""
        if self.bias is None:
            ctx.ops.rms_norm(x, norm, self.eps, out)
            return
        with ctx.frame():
            bias = vector(ctx, ctx.backend.vector(self.bias), WeightPart(NORM_BIAS), self.divisor)
            ctx.ops.layer_norm(x, norm, bias, self.eps, out)

    def hidden_backward(self, ctx: Context, dh: Array, x: Array, dx: Array) -> None:
        """dx (n, D), float32, += the gradient of x from dh (n, D), the gradient of `hidden`."""
        backward = ctx.ops.rms_norm_backward if self.bias is None else ctx.ops.layer_norm_backward
        backward(dh, x, ctx.backend.vector(self.norm), self.eps, dx)

    def log_probs(
        self, ctx: Context, x: Array, targets: Targets, source: HeadSource, *, over_vocabulary: bool = False,
        temperature: float | None = None,
    ) -> PerTarget:  # fmt: skip
        """Return the targets' log-probabilities (nats), from the final residual stream x (T, D), float32.

        `over_vocabulary`, `temperature`: what the objective reads (`Objective`).
        """
        if not targets.rows.size:
            return PerTarget(np.empty(0), np.empty(0))
        with ctx.frame():
            hidden = self._hidden(ctx, x, targets.rows)
            views = View.all_of(ctx, targets, over_vocabulary, temperature)
            for first, logits, _ in self.logits_of(ctx, hidden, source):
                for view in views:
                    view.add(ctx, first, logits, self.softcap)
            return joined([view.log_probs(ctx, self.weight.rows, self.softcap) for view in views])

    def likely(
        self, ctx: Context, x: Array, targets: Targets, source: HeadSource, count: int, temperature: float,
        stop: int | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:  # fmt: skip
        """Return the `count` most likely tokens below `stop` after each supervised row, and their log-probabilities.

        Both are (n, count), the most likely token first. x (T, D), float32: the final residual stream.
        """
        n = len(targets.rows)
        if not n:
            return np.empty((0, count), np.int32), np.empty((0, count))
        with ctx.frame():
            hidden = self._hidden(ctx, x, targets.rows)
            view = View(targets, Softmax.start(ctx, targets, False), temperature)
            values, ids = ctx.floats("largest logits", n, count), ctx.scratch.take("their ids", (n, count), np.int32)
            ctx.ops.fill(values, -np.inf)
            for first, logits, _ in self.logits_of(ctx, hidden, source):
                view.add(ctx, first, logits, self.softcap)
                if (width := min(logits.shape[1], (stop or self.weight.rows) - first)) > 0:
                    ctx.ops.largest(logits[:, :width], first, values, ids)
            with ctx.backend.host(ids) as found:
                return view.sorted(ctx, np.array(found, np.int32), values, self.softcap)

    def gradient(
        self, ctx: Context, x: Array, targets: Targets, source: HeadSource, score: Score, *,
        over_vocabulary: bool = False, temperature: float | None = None, sink: HeadSink | None = None,
        apart: Array | None = None,
    ) -> None:  # fmt: skip
        """x (T, D), float32, the final residual stream, becomes dx: the gradient of the loss with respect to x.

        `score` receives the log-probabilities and returns the loss's derivative with respect to each. If it returns
        None, because they are not known yet, x becomes the gradient of the sum of - log p over all first targets, and
        `apart` (E, D) the gradient of log p of each further target minus log p of its row's first target. With a
        `sink`, which trains norm and weight, the arrays that it needs stay in the caller's frame.
        """
        rows = targets.rows
        if not rows.size:
            score(PerTarget(np.empty(0), np.empty(0)))
            ctx.ops.fill(x, 0)
            return
        with ctx.frame() if sink is None else nullcontext():
            hidden, views = self._hidden(ctx, x, rows), View.all_of(ctx, targets, over_vocabulary, temperature)
            weights = self._backward(ctx, x, views, hidden, source, score, sink, apart)
            if sink is not None:
                (view,) = views
                sink.head(ctx, HeadPass(hidden, view.softmax, targets, weights[0]))
        ctx.ops.zero_rows(x, np.delete(np.arange(len(x)), rows))

    def _backward(
        self, ctx: Context, x: Array, views: Sequence[View], hidden: Array, source: HeadSource, score: Score,
        sink: HeadSink | None, apart: Array | None,
    ) -> list[Weights]:  # fmt: skip
        """The supervised rows of x become their gradient. Returns the weights by which each view composed it."""
        targets, softmax = views[0].targets, views[0].softmax
        rows, (n, width), vocabulary = targets.rows, hidden.shape, self.weight.rows
        own = [slice(first, first + n) for first in range(0, n * len(views), n)]  # the rows of dh of each view
        spread = 0 if softmax.logits is None else n if self.softcap else 1  # rows of dh that sum over all of W
        with ctx.frame():
            of_norm: dict[str, Array] = {}  # gradients of the norm's vectors
            if sink is not None:
                for name in (NORM,) if self.bias is None else (NORM, NORM_BIAS):
                    of_norm[name] = ctx.floats(f"gradient of {name}", *self.norm.shape)
                    ctx.ops.fill(of_norm[name], 0)
            dh = ctx.floats("dhidden", own[-1].stop + spread, width)
            ctx.ops.fill(dh, 0)
            for first, logits, weight in self.logits_of(ctx, hidden, source):
                exponentials = ctx.operands("exponentials tile", own[-1].stop + spread, logits.shape[1])
                for view, mine in zip(views, own):
                    view.add(ctx, first, logits, self.softcap, exponentials[mine], dh[mine])
                if spread:
                    ctx.ops.capped_slopes(logits[:spread], self.softcap)
                    ctx.ops.cast(logits[:spread], exponentials[n:])
                ctx.ops.linear_backward(exponentials, weight, dh, accumulate=True)
            found = [view.log_probs(ctx, vocabulary, self.softcap) for view in views]
            slopes, weights = score(joined(found)), [UNSCALED]
            if slopes is not None:
                weights = [
                    Weights.of(ctx, mine, logp, view, vocabulary, self.softcap)
                    for mine, logp, view in zip(divided(slopes, views), found, views)
                ]
            elif apart is not None:
                self._further_gradients(ctx, x, targets, softmax, source, apart)
            for start, stop in ctx.tiles(n, ROWS):
                part, chosen = slice(start, stop), rows[start:stop]
                with ctx.frame():
                    target_rows = ctx.floats("target rows", stop - start, width)
                    for view, mine, each in zip(views, own, weights):
                        self._compose_gradient(ctx, each, view, part, target_rows, dh[mine], dh[own[-1].stop :], source)
                        if view is not views[0]:
                            ctx.ops.scale_columns(dh[mine][part], None, dh[part], accumulate=True)
                    # hidden = rms(x) g: the rows of x are read for the last time, then replaced by their gradient
                    before, gradient = target_rows, ctx.floats("gradient rows", stop - start, width)
                    ctx.ops.take_rows(x, chosen, before)
                    ctx.ops.fill(gradient, 0)
                    if of_norm:
                        norm_gradient(ctx, dh[part], before, self.eps, *of_norm.values())
                    self.hidden_backward(ctx, dh[part], before, gradient)
                    ctx.ops.put_rows(gradient, chosen, x)
            if sink is not None:
                for name, gradient in of_norm.items():
                    ctx.ops.scale(gradient, 1 / self.divisor)  # the gradient of g / c becomes the gradient of g
                    sink.vector(ctx, name, gradient)
        return weights

    def _compose_gradient(
        self, ctx: Context, weights: Weights, view: View, part: slice, target_rows: Array, dh: Array,
        all_rows: Array, source: HeadSource,
    ) -> None:  # fmt: skip
        """Turn some rows of dh (n, D), sums of exponentials times W, into gradients of the loss, in place.

        `all_rows`: the sums over all of W, if the objective reads means. Overwrites `target_rows`.
        """
        targets, softmax, softcap = view.targets, view.softmax, self.softcap / view.temperature
        n, own = part.stop - part.start, dh[part]
        source.gather(self.weight, targets.ids[part], target_rows)
        with ctx.frame():
            losses = ctx.floats("loss", n)
            ctx.ops.cross_entropy_finish(
                softmax.reference[part], softmax.sum[part], softmax.target_logit[part], losses, target_rows, own,
                weights.scale, softcap=softcap,
            )  # fmt: skip
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
        if len(all_rows):
            evenly = all_rows[part] if self.softcap else target_rows
            if not self.softcap:
                ctx.ops.fill(evenly, 0)
                ctx.ops.scale_columns(evenly, None, evenly, bias=all_rows.reshape(dh.shape[1]))
            mean = np.broadcast_to(weights.mean, len(targets.rows))
            ctx.ops.scale_rows(evenly, placed(ctx, mean[part], n))
            ctx.ops.scale_columns(evenly, None, own, accumulate=True)

    def _further_gradients(
        self, ctx: Context, x: Array, targets: Targets, softmax: Softmax, source: HeadSource, out: Array
    ) -> None:
        """out (E, D) = the gradient of log p of each further target minus log p of its row's first target."""
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
                self.hidden_backward(ctx, more, before, out[first:last])

    def logits(self, ctx: Context, x: Array, source: HeadSource, out: Array) -> None:
        """out (T, V) = the logits, from the final residual stream x (T, D)."""
        with ctx.frame():
            hidden = ctx.operands("hidden", *x.shape)
            self.hidden(ctx, x, ctx.backend.vector(self.norm), hidden)
            for first, last in ctx.tiles(self.weight.rows, ctx.vocab_tile):
                with source.rows(self.weight, first, last) as part:
                    ctx.ops.linear(hidden, ctx.backend.matrix(part), out[:, first:last])
            if self.softcap:
                ctx.ops.softcap(out, self.softcap)

    def states(self, ctx: Context, x: Array, out: Array) -> None:
        """out (T, D), float32 = the hidden states after the final norm, from the final residual stream x (T, D)."""
        Head.hidden(self, ctx, x, ctx.backend.vector(self.norm), out)  # a subclass may do more before its product
        if self.divisor != 1:
            ctx.ops.scale(out, self.divisor)

    def _hidden(self, ctx: Context, x: Array, rows: NDArray[np.intp]) -> Array:
        """Return the normed supervised rows (n, D), an operand."""
        hidden = ctx.operands("hidden", len(rows), x.shape[1])
        norm = vector(ctx, ctx.backend.vector(self.norm), WeightPart(NORM), self.divisor)
        for start, stop in ctx.tiles(len(rows), ROWS):
            with ctx.frame():
                source = ctx.floats("rows of the residual stream", stop - start, x.shape[1])
                ctx.ops.take_rows(x, rows[start:stop], source)
                self.hidden(ctx, source, norm, hidden[start:stop])
        return hidden

    def logits_of(
        self, ctx: Context, hidden: Array, source: HeadSource, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, Array, Matrix]]:
        """Yield (first column, logits (n, tile), rows of the head), a tile of the vocabulary at a time.

        The tiles cover columns [start, stop); by default to the last.
        """
        for first, last in ctx.tiles(self.weight.rows if stop is None else stop, ctx.vocab_tile, start):
            with source.rows(self.weight, first, last) as part, ctx.frame():
                weight = ctx.backend.matrix(part)
                logits = ctx.floats("logits tile", len(hidden), last - first)
                product(ctx, hidden, weight, WeightPart(HEAD, row=first), logits)
                yield first, logits, weight
