"""MeSP (Park et al., ACL 2026 Industry): the structured backward pass.

The forward pass saves only each block's input x. The backward pass recomputes a block from x, branch by branch, and
differentiates it by hand. Each array is freed as soon as the derivation allows. With T tokens, width D, rank r:

    attention     n = rms(x) g;  q, k, v = n W^T;  o = softmax(q k^T) v;  y = x + o W_o^T        nn/attention.py
    gated unit    n = rms(x) g;  y = x + (act(n W_g^T) * (n W_u^T)) W_d^T, a tile of F at a time      nn/glu.py
    W with LoRA   z = x W^T + h B^T,   h = s x A^T                                  nn/linear.py, nn/adapters/lora.py

`ctx.floats` and `ctx.operands` allocate an array; the end of the enclosing `with ctx.frame()` frees it. An operand has
the type that products read: bf16 or float32. The arrays that outlive a branch are allocated elsewhere:

    the residual stream x (T, D), then its gradient dy, in the same memory      `Sweep.enter`: until the batch is done
    the checkpoint of each block's input                                        `RoundTrip.forward`: outside the scratch
    a checkpoint read back, x (T, D); A, B and dA, dB of one block; k and v     `RoundTrip.backward`: while in the block

`methods/sweep.py` allocates these and splits the tokens into chunks. docs/derivations/block.md derives the whole block.
The ledger in docs/memory.md lists every array of a step: its shape, where it is allocated and where it is freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from featherback.core.noise import Draw
from featherback.data.batch import Batch
from featherback.engine.backend.protocol import Array
from featherback.methods.base import FIRST, KeepingOptions, Method, Options
from featherback.methods.losses import loss_gradient
from featherback.methods.sweep import GradientSink, Layer, RoundTrip, WeightSink, round_trip
from featherback.nn.context import Context


class MeSP(Method):
    """Exact gradients. Scratch memory does not grow with depth; checkpoints and kept intermediates do."""

    can_train_weights = True
    options_class: ClassVar[type[Options]] = KeepingOptions

    def gradients(self, batch: Batch, scale: float, sink: GradientSink | WeightSink, draw: Draw = FIRST) -> float:
        with self._begin(batch, draw) as sweep, round_trip(sweep, self.backward_blocks(draw), sink) as trip:
            # x_0 (T, D), float32: the tokens' embeddings. If only some layers are trained, `enter` goes on to the
            # lowest of them, or reads its input from the disk.
            for i in sweep.enter():
                trip.forward(i)  # saves x_i as a checkpoint; then x_{i+1} = block_i(x_i) overwrites x_i
            loss = self.loss_gradient(trip, scale)  # dx_L = d(scale * loss) / dx_L overwrites x_L
            for i in trip.back:  # the blocks of `backward_blocks`
                # reads x_i from its checkpoint; dx_i overwrites dx_{i+1}; the sink receives dA, dB after the block
                trip.backward(i, self.block_backward)
            trip.finish()  # dx_0 is the gradient of the embedding's rows; the sink receives it if they are trained
            return loss

    def backward_blocks(self, draw: Draw) -> Sequence[int]:
        """Return the blocks that have a backward pass, in its order: here from the last to the lowest trained one."""
        return range(self.first_trained, len(self.model.blocks))[::-1]

    def loss_gradient(self, trip: RoundTrip, scale: float) -> float:
        """Return the summed loss (nats). The residual stream becomes its gradient, one vocabulary tile at a time."""
        return loss_gradient(trip, self.objective, scale)

    def block_backward(self, ctx: Context, layer: Layer, dy: Array, x: Array) -> None:
        """Turn dy (T, D), float32, the gradient of a block's output, into that of its input x, in place.

        x (T, D) is an operand. The caller allocated both arrays and frees them.
        """
        self._branches_backward(ctx, layer, dy, x, number=0)

    def _branches_backward(self, ctx: Context, layer: Layer, dy: Array, x: Array, number: int) -> None:
        """Do the same for the branches from `number` on; x (T, D) is the input of branch `number`.

        y = x + f(x):   dx = dy + J_f(x)^T dy.   Later branches run first: they turn the block's dy into this dy.
        """
        block, w, carry, kept = layer
        branch, carried = block.branches[number], carry[number]
        with ctx.frame():
            # The arrays of f(x) that the backward pass needs, kept or recomputed. Attention: q, o and the log-sum-exp
            # of each score row (k and v are in `carried`). They stay while the later branches run, until this frame
            # ends.
            # A gated unit needs nothing: its backward pass recomputes gate and up, tile by tile.
            state = branch.recompute(ctx, x, w, carried, kept)
            if number + 1 < len(block.branches):
                with ctx.frame():
                    # y = x + f(x) (T, D), the next branch's input: kept or recomputed, and freed when that branch is
                    # done. The last branch's output is never recomputed, because nothing needs it.
                    y = block.following(ctx, number + 1, x, state, w, kept)
                    self._branches_backward(ctx, layer, dy, y, number + 1)  # dy: of the block's output, then of y
            # For each projection z = x W^T + h B^T of f, from the output of f back to its input (here x is the
            # projection's own input; `Projection.backward` frees h and dh (T, r); nn/glu.py works by tiles):
            #     dh = s dz B             (`read_backward`)
            #     h = s x A^T             recomputed (the adapter's `read`)
            #     dA = dh^T x             in the same call of `read`
            #     dB^T = h^T dz           (`collect_b`)
            #     dx = dz W + dh A        (`backward_input`)
            # Attention: do from W_o; dq, dk, dv from do, by tiles of the scores, which never exist as a whole.
            # Gated unit: da from W_d; dgate, dup from da, gate and up, by tiles of F.
            # The norm before f adds its gradient to dy in place: dy is now dx.
            branch.backward(ctx, dy, x, state, w, carried)


METHOD = MeSP
