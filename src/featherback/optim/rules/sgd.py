"""Stochastic gradient descent (Robbins and Monro, 1951): no state, so no memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from featherback import kernels
from featherback.optim.rule import Float32, Rule
from featherback.options import option


@dataclass(frozen=True, kw_only=True)
class SGD(Rule):
    """p -= lr (g + weight_decay p)"""

    LEARNING_RATE: ClassVar[float] = 1e-1

    weight_decay: float = option(0.0, least=0, help="Decoupled weight decay.")

    def update(
        self,
        parameter: Float32,
        gradient: Float32,
        states: Sequence[Float32],
        step: int,
        lr: float,
        grad_scale: float,
    ) -> None:
        kernels.sgd(parameter, gradient, lr, self.weight_decay, grad_scale)


RULE = SGD
