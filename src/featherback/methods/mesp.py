"""MeSP (Park et al., ACL 2026 Industry): the structured backward pass.

Forward through the blocks, keeping each one's input. The loss. Then the blocks in reverse, each recomputed from its
input and differentiated by hand, every tensor dying as soon as the derivation allows (docs/derivations/block.md):
what a `frame` took is freed at its end.
"""

from __future__ import annotations

from typing import NamedTuple

from featherback.backend.protocol import Array
from featherback.data.batch import Batch
from featherback.layers.attention import KeyValues
from featherback.layers.block import Block
from featherback.layers.context import Context
from featherback.layers.kept import Kept
from featherback.layers.linear import BlockWeights
from featherback.memory.resources import TokenStore
from featherback.methods.base import FIRST, Draw, Method, Sweep
from featherback.parameters.sinks import GradientSink


class Layer(NamedTuple):
    """What the spans of a layer share on their way back."""

    block: Block
    w: BlockWeights
    kv: KeyValues
    kept: Kept
    gathered: tuple[Array, Array] | None  # dk and dv of all tokens; None: there is but one span


class MeSP(Method):
    """Exact gradients in memory that does not grow with depth, unless the plan keeps intermediates for speed."""

    can_keep = True

    def gradients(self, batch: Batch, scale: float, sink: GradientSink, draw: Draw = FIRST) -> float:
        with self._begin(batch) as sweep, self.resources.kept.frame():
            sweep.embed()
            kept = [self._forward(sweep, i) for i in range(len(self.model.blocks))]
            loss = self._loss(sweep, scale)
            for i in reversed(range(len(self.model.blocks))):
                self._backward(sweep, i, kept[i], sink)
            return loss

    def _forward(self, sweep: Sweep, index: int) -> Kept:
        """The residual stream goes through a block; its input is checkpointed, and what the plan keeps is kept."""
        block, tokens = self.model.blocks[index], sweep.batch.n_tokens
        kept = self._room(block, index, tokens)
        with self._layer(sweep.ctx, index, index + 1) as w:
            kv = block.attention.store(sweep.ctx, tokens, kept)
            for span in sweep.spans:
                with sweep.rows(span, block.rotaries) as (ctx, x):
                    with ctx.frame():
                        scratch = ctx.operands("checkpoint on its way out", *x.shape)
                        self._checkpoints.save(index, x, span.start, scratch)
                    block.forward(ctx, x, w, kv, kept)
        return kept

    def _loss(self, sweep: Sweep, scale: float) -> float:
        """The summed loss (nats); the residual stream becomes the gradient of scale * loss."""
        total, head, weights = 0.0, self.model.head, self.resources.weights
        for span in sweep.spans:
            with sweep.rows(span) as (ctx, x):
                total += head.loss_and_gradient(ctx, x, sweep.targets(span), weights, scale)
        return total

    def _backward(self, sweep: Sweep, index: int, kept: Kept, sink: GradientSink) -> None:
        """The gradient of a block's output becomes that of its input; its adapter's gradients go to `sink`.

        Where tokens pass in chunks, the last chunk goes first: keys and values are there at once, their gradients
        gather in dk and dv, and are complete when it is their own chunk's turn.
        """
        block, ctx, spans = self.model.blocks[index], sweep.ctx, sweep.spans
        assert self.adapter is not None
        with ctx.frame():
            room = ctx.floats("LoRA gradients of a layer", self.adapter.layout.size)
            with (
                sink.gather(index, room) as collected,
                self._layer(ctx, index, index - 1, gradients=collected) as w,
            ):
                kv = block.attention.store(ctx, sweep.batch.n_tokens, kept, backward=True)
                gathered = None
                if len(spans) > 1:
                    gathered = block.attention.gradient_store(ctx, sweep.batch.n_tokens)
                    for span in spans:
                        with ctx.at(span, block.rotaries) as part:
                            places = kv.places(span)
                            x = None if places.keys() <= kept.arrays.keys() else self._input(part, index)
                            block.attention.project(part, x, w, places, kept)
                layer = Layer(block, w, kv, kept, gathered)
                for span in reversed(spans):
                    with sweep.rows(span, block.rotaries) as (part, dy), part.frame():
                        self._backward_block(part, layer, dy, self._input(part, index))

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

    def _input(self, ctx: Context, index: int) -> Array:
        """The checkpoint of a block's input (T, D), an operand."""
        x = ctx.operands("checkpoint", ctx.tokens, self.model.embed_tokens.cols)
        self._checkpoints.load(index, x, ctx.span.start)
        return x

    @property
    def _checkpoints(self) -> TokenStore:
        """The inputs of the blocks, a slot per layer."""
        assert self.resources.checkpoints is not None
        return self.resources.checkpoints

    def _room(self, block: Block, index: int, tokens: int) -> Kept:
        """Room for the intermediates that the plan keeps of a layer."""
        take, operand = self.resources.kept.take, self.resources.backend.operand(self.plan.compute)
        chosen = {name: block.intermediates[name] for name in self.plan.kept(index)}
        arrays = {name: take(name, *about.placed(tokens, operand)) for name, about in chosen.items()}
        return Kept(arrays, [name for name, about in chosen.items() if about.by_head])


METHOD = MeSP
