"""MeSP (Park et al., ACL 2026 Industry): the structured backward pass.

Blocks are recomputed from their checkpointed inputs and differentiated by hand, each tensor dying as soon as the
derivation allows (docs/derivations/block.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.backprop import block, loss
from featherback.backprop.context import Context
from featherback.backprop.linear import Projection
from featherback.memory.ledger import Sizes, structured_pass
from featherback.methods.base import CheckpointedMethod
from featherback.models.model import LayerWeights

Array = NDArray[Any]
Float32 = NDArray[np.float32]


class MeSP(CheckpointedMethod):
    """Exact gradients in memory that does not grow with depth, unless the plan keeps blocks for speed."""

    can_keep_blocks = True

    def _loss_and_gradient(self, ctx: Context, x: Float32, targets: NDArray[np.int32], scale: float) -> float:
        return loss.loss_and_gradient(ctx, x, targets, self.model.norm, self.weights, scale)

    def _block_backward(
        self,
        ctx: Context,
        dy: Float32,
        x: Array,
        kept: block.BlockState | None,
        weights: LayerWeights,
        p: dict[str, Projection],
    ) -> None:
        block.backward(ctx, dy, x, weights, p, kept)

    @classmethod
    def workspace(cls, sizes: Sizes) -> int:
        return structured_pass(sizes).peak()[0]

    @classmethod
    def products(cls, sizes: Sizes) -> tuple[float, float]:
        c = sizes.config
        if sizes.plan.keep_blocks:
            return 2, 1 + 3.5
        down = c.intermediate_size / (2 * c.q_size + 2 * c.kv_size + 3 * c.intermediate_size)
        return 3 - down, 2 + 3.5  # forward, recomputation without the down projection, gradient of the inputs


METHOD = MeSP
