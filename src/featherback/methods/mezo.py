"""MeZO (Malladi et al., NeurIPS 2023): gradients along random directions, from two forward passes each.

z ~ N(0, I) from a seed; g = (L(theta + eps z) - L(theta - eps z)) / (2 eps); the estimate is g z. The perturbation is
added to a layer's parameters when they are read, so nothing has to be undone and no rounding errors accumulate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from featherback.core.noise import Key
from featherback.core.options import option
from featherback.data.batch import Batch
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.methods.assembly import Parameters
from featherback.methods.base import FIRST, Draw, Method, Options
from featherback.methods.sweep import GradientSink, WeightSink

ADAPTER, WHOLE = 1e-2, 1e-3
"""Default epsilon for adapters and for whole models, from the paper."""


@dataclass(frozen=True, kw_only=True)
class MeZOOptions(Options):
    """How many random directions MeZO uses, and how far it steps along them."""

    epsilon: float | None = option(
        None,
        above=0,
        shown_default=lambda: f"{ADAPTER:g} ({WHOLE:g} with --train full)",
        help="How far the weights are moved forwards and backwards along a random direction. The loss is measured at "
        "both ends.",
    )
    directions: int = option(1, least=1, help="Number of random directions per batch; their estimates are averaged.")

    def settled(self, train: str) -> MeZOOptions:
        if self.epsilon is not None:
            return self
        return replace(self, epsilon=ADAPTER if train == "lora" else WHOLE)


@dataclass(frozen=True)
class Perturbed:
    """theta + factor z, computed when a layer is read."""

    parameters: Parameters
    add: Callable[[int, Array], None]  # adds factor z of a layer to an array (size,)

    def fetch(self, layer: int, out: Array, on: Device) -> None:
        """Copy the perturbed values of a layer to `out` (size,)."""
        self.parameters.fetch(layer, out, on)
        self.add(layer, out)


class MeZO(Method):
    """Zeroth-order gradient estimates, in the memory of inference. Meant for SGD."""

    needs_checkpoints = False
    can_train_weights = True
    FULL_LEARNING_RATE = 1e-6
    options_class = MeZOOptions
    options: MeZOOptions

    @property
    def epsilon(self) -> float:
        """The distance along a direction."""
        epsilon = self.options.settled("full" if self.adapter is None else "lora").epsilon
        assert epsilon is not None
        return epsilon

    def gradients(self, batch: Batch, scale: float, sink: GradientSink | WeightSink, draw: Draw = FIRST) -> float:
        if self.adapter is None:
            return self._of_weights(batch, scale, cast(WeightSink, sink), draw)
        parameters = self.adapter.parameters
        if draw.first_token == 0:
            self._begin_step(draw)

        def at(key: Key, factor: float) -> float:
            moved = Perturbed(parameters, partial(self._add, key, factor))
            return self.loss(batch, moved, draw, objective=self.objective)

        total = 0.0
        for key, slope, loss in self._slopes(at, scale, draw):
            self._gather(key, slope, cast(GradientSink, sink))
            total += loss
        return total

    def _of_weights(self, batch: Batch, scale: float, sink: WeightSink, draw: Draw) -> float:
        """Do the same for the model's own weights. All slopes are known before any weight changes."""
        ops = self.resources.ops

        def at(key: Key, factor: float) -> float:
            return self.loss(
                batch, draw=draw, perturbations=sink.perturbation(ops, key, factor), objective=self.objective
            )

        found = list(self._slopes(at, scale, draw))
        with self._begin(batch) as sweep:
            sink.along(sweep.ctx, [(key, slope) for key, slope, _ in found])
        return sum(loss for *_, loss in found)

    def _slopes(
        self, at: Callable[[Key, float], float], scale: float, draw: Draw
    ) -> Iterator[tuple[Key, float, float]]:
        """Yield (direction, slope of scale * loss along it, loss), the last two divided by the number of directions.

        `at`: computes the loss at a multiple of a direction.
        """
        count, epsilon = self.options.directions, self.epsilon
        for number in range(count):
            key = (draw.seed, draw.step, number)
            plus, minus = at(key, epsilon), at(key, -epsilon)
            yield key, scale * (plus - minus) / (2 * epsilon) / count, (plus + minus) / 2 / count

    def _gather(self, key: Key, slope: float, sink: GradientSink) -> None:
        """Pass the estimate, slope z, to `sink`."""
        assert self.adapter is not None
        on = self.resources
        for layer in self.adapter.layout.adapted:
            with on.frame():
                room = on.floats("gradients of a layer", self.adapter.layout.size)
                with sink.gather(layer, room, on) as collected:
                    self._add(key, slope, layer, collected)

    def _begin_step(self, draw: Draw) -> None:
        """Prepare an optimiser step. Called before its first direction."""

    def _add(self, key: Key, factor: float, layer: int, out: Array) -> None:
        """Compute out (size,) += factor z. A layer's z depends only on the key."""
        self.resources.ops.add_normal((*key, layer), factor, out)


METHOD = MeZO
