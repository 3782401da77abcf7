"""AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019, arXiv 1711.05101)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from featherback.core.options import option
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.optim.rule import Elementwise, StepArgs


@dataclass(frozen=True, kw_only=True)
class AdamW(Elementwise):
    """m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  t = step
    p -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p)
    """

    LEARNING_RATE: ClassVar[float] = 8.5e-4  # docs/decisions/defaults.md
    FULL_LEARNING_RATE: ClassVar[float] = 5.6e-5  # docs/decisions/whole.md
    WIDTH_POWER: ClassVar[float] = -1.5
    FULL_WIDTH_POWER: ClassVar[float] = -1.0
    STATES: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")  # m, v

    beta1: float = option(0.9, least=0, below=1, help="Decay of the gradient's running mean.")
    beta2: float = option(0.999, least=0, below=1, help="Decay of the squared gradient's running mean.")
    eps: float = option(1e-8, above=0, help="Added to the root of the squared gradient's running mean.")
    weight_decay: float = option(0.0, least=0, help="Decoupled weight decay.")

    def change(self, on: Device, values: Array, gradient: Array, states: Sequence[Array], turn: StepArgs) -> None:
        m, v = states
        betas, decay = (self.beta1, self.beta2), self.weight_decay
        on.ops.adamw(values, gradient, m, v, turn.lr, *betas, self.eps, decay, turn.step, turn.grad_scale)


RULE = AdamW
