"""The gradient of the output head's weight, one vocabulary tile at a time: docs/derivations/whole.md, loss.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from featherback.engine.backend.protocol import Array
from featherback.nn.context import Context
from featherback.nn.loss import Head, HeadSource
from featherback.nn.softmax import ROWS, HeadPass, Softmax, placed
from featherback.nn.span import pieces


@dataclass(frozen=True)
class HeadGradient:
    """The gradient of the output head (V, D). Each reading recomputes the logits."""

    ctx: Context
    head: Head
    source: HeadSource
    done: HeadPass
    few: None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.head.weight.rows, self.head.weight.cols

    def tiles(self, height: int) -> Iterator[tuple[slice, Array]]:
        ctx, head, done = self.ctx, self.head, self.done
        (n, width), softmax, weights, ids = done.hidden.shape, done.softmax, done.weights, done.targets.ids
        with ctx.frame():
            shares, pulls = ctx.floats("shares", n), ctx.floats("pulls of the targets", n)
            ctx.ops.softmax_shares(
                softmax.reference, softmax.sum, softmax.target_logit, weights.scale, shares, pulls, softcap=head.softcap
            )
            if not isinstance(weights.cross, float):
                ctx.ops.scale_rows(shares.reshape(n, 1), placed(ctx, weights.cross, n))
            weighted, operand = (ctx.floats("hidden, weighted", n, width), ctx.operands("hidden, weighted", n, width))
            ctx.ops.cast(done.hidden, weighted)
            ctx.ops.scale_rows(weighted, shares)
            ctx.ops.cast(weighted, operand)
            extra = None if isinstance(weights.first, float) else ExtraTerms.of(ctx, done)
            again = Softmax.start(ctx, done.targets, False, softmax.leaves_out)
            ctx.ops.cast(softmax.reference, again.reference)
            for first, last in ctx.tiles(head.weight.rows, height):
                with ctx.frame():
                    gradient = ctx.floats("gradient of the head, tile", last - first, width)
                    for f, logits, _ in head.logits_of(ctx, done.hidden, self.source, first, last):
                        p, turned = ctx.operands("p", *logits.shape), ctx.operands("p^T", *logits.shape[::-1])
                        again.add(ctx, done.targets, f, logits, head.softcap, p)
                        ctx.ops.transpose(p, turned)
                        part = gradient[f - first : f - first + logits.shape[1]]
                        ctx.ops.linear_backward(turned, ctx.ops.dense(operand), part)
                        if extra is not None and extra.evenly is not None and head.softcap:
                            extra.add_capped(ctx, logits, head.softcap, p, turned, part)
                    ctx.ops.add_rows(weighted, ids - first, gradient, factors=pulls)
                    if extra is not None:
                        extra.add(ctx, done, first, head.softcap, gradient)
                    yield slice(first, last), gradient


class ExtraTerms(NamedTuple):
    """The terms of the head's gradient that other objectives add to cross-entropy's."""

    hidden: Array  # (n, D)
    first: Array  # (n,), `Weights.first`
    evenly: Array | None  # (n, D), an operand: the share of a row that goes to every row of W, before a cap's slopes
    total: Array | None  # (1, D), the sum of `evenly`; not used with a cap

    @classmethod
    def of(cls, ctx: Context, done: HeadPass) -> ExtraTerms:
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
        """Add to the gradient (height, D) of the rows of W from `start` on everything that needs no logits."""
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
        """Add each row's share to the gradient (tile, D) of a tile of W, by its capped slopes (n, tile)."""
        ctx.ops.softcap(logits, softcap)
        ctx.ops.capped_slopes(logits, softcap)
        ctx.ops.cast(logits, p)
        ctx.ops.transpose(p, turned)
        ctx.ops.linear_backward(turned, ctx.ops.dense(self.evenly), part, accumulate=True)


def filled(ctx: Context, *shape: int) -> Array:
    """Return an operand filled with ones."""
    floats, ones = ctx.floats("one", *shape), ctx.operands("ones", *shape)
    ctx.ops.fill(floats, 1)
    ctx.ops.cast(floats, ones)
    return ones
