"""MeSP (Park et al., ACL 2026 Industry): the structured backward pass.

Of the forward pass only each block's input x stays. On the way back a block is computed again from it, branch by
branch, and differentiated by hand; every array dies as soon as the derivation allows. With T tokens, width D, rank r:

    attention     n = rms(x) g;  q, k, v = n W^T;  o = softmax(q k^T) v;  y = x + o W_o^T        nn/attention.py
    gated unit    n = rms(x) g;  y = x + (act(n W_g^T) * (n W_u^T)) W_d^T, a tile of F at a time      nn/glu.py
    W with LoRA   z = x W^T + h B^T,   h = s x A^T                                                  nn/linear.py

An array is born with `ctx.floats` or `ctx.operands`, and dies where the `with ctx.frame()` around it ends. Chunks of
tokens, and where checkpoints wait, are the business of `methods/sweep.py`. docs/derivations/block.md derives it all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from featherback.core.noise import Draw
from featherback.data.batch import Batch
from featherback.engine.backend.protocol import Array
from featherback.methods.base import FIRST, KeepingOptions, Method, Options
from featherback.methods.losses import loss_gradient
from featherback.methods.sinks import GradientSink, WeightSink
from featherback.methods.sweep import Layer, RoundTrip, round_trip
from featherback.nn.context import Context


class MeSP(Method):
    """Exact gradients in memory that does not grow with depth, unless the plan keeps intermediates for speed."""

    can_train_weights = True
    options_class: ClassVar[type[Options]] = KeepingOptions

    def gradients(self, batch: Batch, scale: float, sink: GradientSink | WeightSink, draw: Draw = FIRST) -> float:
        with self._begin(batch, draw) as sweep, round_trip(sweep, self.way_back(draw), sink) as trip:
            sweep.embed()  # x_0 (T, D), float32: the tokens' embeddings
            for i in range(len(self.model.blocks)):
                trip.forward(i)  # x_i goes to the checkpoints; then x_{i+1} = block_i(x_i), in the same memory
            loss = self.loss_gradient(trip, scale)  # in the same memory again: dx_L = d(scale * loss) / dx_L
            for i in trip.back:
                # x_i from its checkpoint; dx_{i+1} becomes dx_i; dA, dB of the block go to the sink when it is done
                trip.backward(i, self.block_backward)
            trip.finish()  # dx_0 is the gradient of the rows of the embedding, if that is trained
            return loss

    def way_back(self, draw: Draw) -> Sequence[int]:
        """The blocks that the gradient goes back through, in that order: all, from the last to the first."""
        return range(len(self.model.blocks))[::-1]

    def loss_gradient(self, trip: RoundTrip, scale: float) -> float:
        """The summed loss (nats), tile by tile of the vocabulary; logits never exist (nn/loss.py)."""
        return loss_gradient(trip.sweep, self.objective, scale, trip.sink.head)

    def block_backward(self, ctx: Context, layer: Layer, dy: Array, x: Array) -> None:
        """dy (T, D), the gradient of a block's output, becomes that of its input x (T, D), an operand, in place."""
        self._branches_backward(ctx, layer, dy, x, number=0)

    def _branches_backward(self, ctx: Context, layer: Layer, dy: Array, x: Array, number: int) -> None:
        """The same of the branches from `number` on, x being the input of that one.

        y = x + f(x):   dx = dy + J_f(x)^T dy.   dy comes from the branches behind it, which go back first.
        """
        block, w, carry, kept = layer
        branch, carried = block.branches[number], carry[number]
        with ctx.frame():
            # What backward needs of f(x): of attention q, k, v, o and each row's log-sum-exp, kept or computed again.
            # Of a gated unit nothing: gate and up are computed again in its backward, tile by tile.
            state = branch.recompute(ctx, x, w, carried, kept)
            if number + 1 < len(block.branches):
                with ctx.frame():
                    # y = x + f(x), the next branch's input: kept, or computed again. The last one's is never needed.
                    y = block.following(ctx, number + 1, x, state, w, kept)
                    self._branches_backward(ctx, layer, dy, y, number + 1)  # dy: of the block's output, then of y
            # For each projection z = x W^T + h B^T of f, in reverse, with x its own input:
            #     h = s x A^T             computed again, not kept from the forward pass (`Projection.read`)
            #     dB^T = h^T dz           (`collect_b`)
            #     dh = s dz B             (`read_backward`)
            #     dA = dh^T x             (`_add_da`)
            #     dx = dz W + dh A        (`backward_input`)
            # Attention: do from W_o; dq, dk, dv from do, tile by tile of the scores, which never exist whole.
            # Gated unit: da from W_d; dgate, dup from da, gate and up; nothing of size T x F exists.
            # A norm before f adds its part to dy, which is dx then.
            branch.backward(ctx, dy, x, state, w, carried)


METHOD = MeSP
