"""MeZO (Malladi et al., NeurIPS 2023): the gradient along random directions, from two forward passes each.

z ~ N(0, I) from a seed; g = (L(theta + eps z) - L(theta - eps z)) / (2 eps); the estimate is g z. The perturbation is
added to each layer's parameters as they are read, so that nothing has to be undone and no rounding drift accumulates.
"""

from __future__ import annotations

from dataclasses import dataclass

from featherback.backend.protocol import Array, Operations
from featherback.data.batch import Batch
from featherback.methods.base import FIRST, Draw, Method, Options, Parameters
from featherback.options import option
from featherback.parameters.sinks import GradientSink


@dataclass(frozen=True, kw_only=True)
class MeZOOptions(Options):
    """How directions are drawn; the defaults are the paper's for LoRA."""

    epsilon: float = option(1e-2, above=0, help="Step along a direction, each way, between the two losses.")
    directions: int = option(1, least=1, help="Random directions per batch, averaged.")


@dataclass(frozen=True)
class Direction:
    """theta + factor z, read a layer at a time; a layer's z depends on the key alone."""

    parameters: Parameters
    ops: Operations
    key: tuple[int, ...]
    factor: float

    def read(self, layer: int, out: Array) -> None:
        """The perturbed values (size,) of a layer."""
        self.parameters.read(layer, out)
        self.ops.add_normal((*self.key, layer), self.factor, out)


class MeZO(Method):
    """Zeroth-order estimates: the memory of inference. Meant for SGD."""

    needs_checkpoints = False
    options_class = MeZOOptions
    options: MeZOOptions

    def gradients(self, batch: Batch, scale: float, sink: GradientSink, draw: Draw = FIRST) -> float:
        assert self.adapter is not None
        scratch, ops = self.resources.scratch, self.resources.backend.ops
        epsilon, count = self.options.epsilon, self.options.directions
        total = 0.0
        for number in range(count):
            key = (*draw, number)
            plus, minus = (
                self.loss(batch, Direction(self.adapter.parameters, ops, key, factor))
                for factor in (epsilon, -epsilon)
            )
            slope = scale * (plus - minus) / (2 * epsilon) / count
            for layer in range(len(self.model.blocks)):
                with scratch.frame():
                    room = scratch.take("gradients of a layer", (self.adapter.layout.size,))
                    with sink.gather(layer, room) as collected:
                        ops.add_normal((*key, layer), slope, collected)
            total += (plus + minus) / 2
        return total / count


METHOD = MeZO
