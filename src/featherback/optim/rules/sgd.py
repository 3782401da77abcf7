"""Stochastic gradient descent (Robbins and Monro, 1951). It has no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from featherback.core.options import option
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.optim.rule import Elementwise, StepArgs


@dataclass(frozen=True, kw_only=True)
class SGD(Elementwise):
    """p -= lr (g + weight_decay p)"""

    LEARNING_RATE: ClassVar[float] = 1e-1
    FULL_LEARNING_RATE: ClassVar[float] = 1e-3  # LOMO's 1e-2 (arXiv 2310.10195) diverges here without clipping

    weight_decay: float = option(0.0, least=0, help="Decoupled weight decay.")

    @property
    def moves_without_gradient(self) -> bool:
        return self.weight_decay > 0

    def change(self, on: Device, values: Array, gradient: Array, states: Sequence[Array], turn: StepArgs) -> None:
        on.ops.sgd(values, gradient, turn.lr, self.weight_decay, turn.grad_scale)


RULE = SGD
