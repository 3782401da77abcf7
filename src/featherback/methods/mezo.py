"""MeZO (Malladi et al., NeurIPS 2023): the gradient along random directions, from two forward passes each.

z ~ N(0, I) from a seed; g = (L(theta + eps z) - L(theta - eps z)) / (2 eps); the estimate is g z. The perturbation is
added to each layer's parameters as they are read, so that nothing has to be undone and no rounding drift accumulates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from featherback.data.batch import Batch
from featherback.host.paged import PagedArray
from featherback.memory.ledger import Ledger, Sizes, begin_pass, block_forward, layer_parameters, loss_tiles
from featherback.methods.base import Method
from featherback.noise import fill_normal

Float32 = NDArray[np.float32]
Draw = tuple[int, int, int]
"""A direction z by its origin: (seed, step, number among the step's directions)."""


class MeZO(Method):
    """Zeroth-order estimates: the memory of inference. Meant for SGD."""

    needs_checkpoints = False
    epsilon = 1e-2  # the paper's for LoRA
    directions = 1  # averaged; the paper's n

    _perturbation: tuple[Draw, float] | None = None  # (which z, signed epsilon) of the pass at work

    def gradients(self, batch: Batch, scale: float, gradients: PagedArray) -> float:
        total = 0.0
        for direction in range(self.directions):
            draw = (self.seed, self.step, direction)
            plus, minus = (self._perturbed_loss(batch, draw, e) for e in (self.epsilon, -self.epsilon))
            slope = scale * (plus - minus) / (2 * self.epsilon) / self.directions
            for layer in range(gradients.layers):
                with self.arena.frame():
                    collected = self.arena.take((gradients.size,))
                    gradients.read(layer, collected)
                    self._add_direction(collected, draw, layer, slope)
                    gradients.write(layer, collected)
            total += (plus + minus) / 2
        return total / self.directions

    @classmethod
    def workspace(cls, sizes: Sizes) -> int:
        return workspace_of(sizes)

    @classmethod
    def products(cls, sizes: Sizes) -> tuple[float, float]:
        return 2, 2

    def _perturbed_loss(self, batch: Batch, draw: Draw, epsilon: float) -> float:
        self._perturbation = draw, epsilon
        try:
            return self.loss(batch)
        finally:
            self._perturbation = None

    def _parameters(self, index: int, flat: Float32) -> None:
        super()._parameters(index, flat)
        if self._perturbation is not None:
            draw, epsilon = self._perturbation
            self._add_direction(flat, draw, index, epsilon)

    def _add_direction(self, flat: Float32, draw: Draw, layer: int, factor: float) -> None:
        """flat (layer_size,) += factor z; a layer's z is the same for the same draw, whenever it is asked for."""
        with self.arena.frame():
            z = self.arena.take(flat.shape)
            fill_normal((*draw, layer), z)
            z *= np.float32(factor)
            flat += z


def workspace_of(s: Sizes) -> int:
    """Bytes of MeZO's arena: a forward pass and the loss."""
    ledger = Ledger()
    with ledger.frame():
        begin_pass(ledger, s)
        with ledger.frame():
            layer_parameters(ledger, s)
            with ledger.frame():
                ledger.take("direction", s.adapter)
            block_forward(ledger, s)
        with ledger.frame():
            loss_tiles(ledger, s)
    with ledger.frame():
        ledger.take("gradients of a layer", s.adapter)
        ledger.take("direction", s.adapter)
    return ledger.peak()[0]


METHOD = MeZO
