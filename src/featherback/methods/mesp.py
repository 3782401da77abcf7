"""MeSP (Park et al., ACL 2026 Industry): the structured backward pass.

Forward through the blocks, keeping each one's input. The loss. Then the blocks in reverse, each recomputed from its
input and differentiated by hand, every tensor dying as soon as the derivation allows (docs/derivations/block.md):
what a `frame` took is freed at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

from featherback.backend.protocol import Array
from featherback.data.batch import Batch
from featherback.layers.attention import KeyValues
from featherback.layers.block import Block
from featherback.layers.context import Context
from featherback.layers.encodings import ENCODINGS, EXACT, PRECISIONS
from featherback.layers.kept import Kept
from featherback.layers.linear import BlockWeights
from featherback.memory.resources import TokenStore
from featherback.methods.base import FIRST, Draw, Method, Options, Sweep
from featherback.methods.sinks import GradientSink, WeightSink
from featherback.options import option


class Layer(NamedTuple):
    """What the spans of a layer share on their way back."""

    block: Block
    w: BlockWeights
    kv: KeyValues
    kept: Kept
    gathered: tuple[Array, Array] | None  # dk and dv of all tokens; None: there is but one span


@dataclass(frozen=True, kw_only=True)
class MeSPOptions(Options):
    """What is kept, where there is memory for it."""

    keep_precision: str = option(
        EXACT,
        choices=PRECISIONS,
        help="Precision of what is kept for the backward pass. 8bit: gate and up in half the memory, which changes "
        "gradients a little.",
    )

    @property
    def precision(self) -> str:
        return self.keep_precision


class MeSP(Method):
    """Exact gradients in memory that does not grow with depth, unless the plan keeps intermediates for speed."""

    options_class: ClassVar[type[Options]] = MeSPOptions
    can_train_weights = True

    def gradients(self, batch: Batch, scale: float, sink: GradientSink | WeightSink, draw: Draw = FIRST) -> float:
        way_back, kept = self._way_back(draw), dict[int, Kept]()
        whole = None if self.adapter is not None else cast(WeightSink, sink)
        with self._begin(batch, draw) as sweep, self.resources.kept.frame():
            sweep.embed()
            for i in range(len(self.model.blocks)):
                if i in way_back:
                    kept[i] = self._forward(sweep, i, place=len(kept))
                else:
                    self._pass(sweep, i)
            loss = self._loss(sweep, scale, whole)
            for i, then in zip(way_back, [*way_back[1:], -1]):
                self._backward(sweep, i, then, kept[i], sink)
            if whole is not None:
                with sweep.rows(sweep.spans[0], save=False) as (ctx, dx):
                    whole.embedding(ctx, sweep.batch.tokens, dx)
            return loss

    def _way_back(self, draw: Draw) -> Sequence[int]:
        """The blocks that the gradient goes back through, in that order: all, from the last to the first."""
        return range(len(self.model.blocks))[::-1]

    def _forward(self, sweep: Sweep, index: int, place: int) -> Kept:
        """The residual stream goes through a block; its input is checkpointed, and what the plan keeps is kept.

        `place`: how many blocks that the gradient will come back to are before it.
        """
        block, tokens = self.model.blocks[index], sweep.batch.n_tokens
        kept = self._room(block, place, tokens)
        with self._layer(sweep.ctx, index, index + 1, columns=kept.columns) as w:
            kv = block.attention.store(sweep.ctx, tokens, kept)
            for span in sweep.spans:
                with sweep.rows(span, block.rotaries) as (ctx, x):
                    with ctx.frame():
                        scratch = ctx.operands("checkpoint on its way out", *x.shape)
                        self._checkpoints.save(place, x, span.start, scratch)
                    block.forward(ctx, x, w, kv, kept)
        return kept

    def _loss(self, sweep: Sweep, scale: float, sink: WeightSink | None) -> float:
        """The summed loss (nats); the residual stream becomes the gradient of scale * loss."""
        total, head, weights = 0.0, self.model.head, self.resources.weights
        for span in sweep.spans:
            with sweep.rows(span) as (ctx, x):
                total += head.loss_and_gradient(ctx, x, sweep.targets(span), weights, scale, sink)
        return total

    def _backward(self, sweep: Sweep, index: int, then: int, kept: Kept, sink: GradientSink | WeightSink) -> None:
        """The gradient of a block's output becomes that of its input; those of what is trained go to `sink`. `then` is
        the block that comes next.

        Where tokens pass in chunks, the last chunk goes first: keys and values are there at once, their gradients
        gather in dk and dv, and are complete when it is their own chunk's turn.
        """
        block, ctx, spans = self.model.blocks[index], sweep.ctx, sweep.spans
        with ctx.frame(), self._collecting(ctx, index, then, kept, sink) as w:
            kv = block.attention.store(ctx, sweep.batch.n_tokens, kept, backward=True)
            gathered = None
            if len(spans) > 1:
                gathered = block.attention.gradient_store(ctx, sweep.batch.n_tokens)
                for span in spans:
                    with ctx.at(span, block.rotaries) as part:
                        places = kv.places(span)
                        x = None if places.keys() <= kept.arrays.keys() else self._input(part, kept)
                        block.attention.project(part, x, w, places, kept)
            layer = Layer(block, w, kv, kept, gathered)
            for span in reversed(spans):
                with sweep.rows(span, block.rotaries) as (part, dy), part.frame():
                    self._backward_block(part, layer, dy, self._input(part, kept))

    @contextmanager
    def _collecting(
        self, ctx: Context, index: int, then: int, kept: Kept, sink: GradientSink | WeightSink
    ) -> Iterator[BlockWeights]:
        """A layer's weights, whose use in the backward pass lets the sink have the gradients of what is trained."""
        if self.adapter is None:
            with self._layer(ctx, index, then, sink=cast(WeightSink, sink).layer(index)) as w:
                yield w
            return
        room = ctx.floats("LoRA gradients of a layer", self.adapter.layout.size)
        with (
            cast(GradientSink, sink).gather(index, room) as collected,
            self._layer(ctx, index, then, gradients=collected, columns=kept.columns) as w,
        ):
            yield w

    def _backward_block(self, ctx: Context, layer: Layer, dy: Array, x: Array) -> None:
        """dy (T, D), the gradient of the block's output, becomes that of its input x (T, D) in place."""
        block, w, kv, kept, gathered = layer
        with ctx.frame():
            # q, k, v, o: kept, or computed again
            state = block.attention.forward(ctx, x, w, kv, kept, again=True, keys=gathered is None)
            with ctx.frame():
                m = block.middle(ctx, x, state, w, kept)
                # y = m + mlp(m): gate and up tile by tile; the down projection only where a norm follows it
                block.mlp.backward(ctx, dy, m, w, kept)
            # m = x + attention(x)
            block.attention.backward(ctx, dy, x, state, w, kv, gathered)

    def _input(self, ctx: Context, kept: Kept) -> Array:
        """The checkpoint of a block's input (T, D), an operand."""
        x = ctx.operands("checkpoint", ctx.tokens, self.model.embed_tokens.cols)
        self._checkpoints.load(kept.place, x, ctx.span.start)
        return x

    @property
    def _checkpoints(self) -> TokenStore:
        """The inputs of the blocks, a slot per block that the gradient comes back to."""
        assert self.resources.checkpoints is not None
        return self.resources.checkpoints

    def _room(self, block: Block, place: int, tokens: int) -> Kept:
        """Room for the intermediates that the plan keeps of a layer."""
        take, operand = self.resources.kept.take, self.resources.backend.operand(self.plan.compute)
        chosen = {name: block.intermediates[name] for name in self.plan.kept(place)}
        encodings = {name: each for name, each in self.plan.encodings.items() if name in chosen}
        arrays = {
            name: take(name, *about.placed(tokens, operand, encodings.get(name))) for name, about in chosen.items()
        }
        size = 0 if self.adapter is None else self.adapter.layout.columns_size
        columns = take("DoRA's c of a layer", (size,)) if size else None
        by_head = [name for name, about in chosen.items() if about.by_head]
        return Kept(arrays, by_head, columns, place, {name: ENCODINGS[each] for name, each in encodings.items()})


METHOD = MeSP
