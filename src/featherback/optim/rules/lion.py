"""Lion: the sign of a momentum (Chen et al., NeurIPS 2023, arXiv 2302.06675). Half of AdamW's states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from featherback.optim.rule import Elementwise, Float32, Turn, pieces
from featherback.optim.rules.adamw import AdamW
from featherback.options import option


@dataclass(frozen=True, kw_only=True)
class Lion(Elementwise):
    """u = sign(beta1 m + (1 - beta1) g);  p = p (1 - lr weight_decay) - lr u;  m = beta2 m + (1 - beta2) g"""

    # Three to ten times smaller than AdamW's, the paper says, as every value moves by a whole step.
    LEARNING_RATE: ClassVar[float] = AdamW.LEARNING_RATE / 5
    FULL_LEARNING_RATE: ClassVar[float] = AdamW.FULL_LEARNING_RATE / 5
    WIDTH_POWER: ClassVar[float] = AdamW.WIDTH_POWER
    FULL_WIDTH_POWER: ClassVar[float] = AdamW.FULL_WIDTH_POWER
    STATES: ClassVar[tuple[str, ...]] = ("first_moment",)  # m

    beta1: float = option(0.9, least=0, below=1, help="Share of the momentum in a step.")
    beta2: float = option(0.99, least=0, below=1, help="Decay of the momentum.")
    weight_decay: float = option(0.0, least=0, help="Decoupled weight decay.")

    def change(self, values: Float32, gradient: Float32, states: Sequence[Float32], turn: Turn) -> None:
        for part in pieces(values.shape):
            p, m = values[part], states[0][part]
            g = gradient[part] * np.float32(turn.grad_scale)
            u = m * self.beta1
            u += (1 - self.beta1) * g
            m *= self.beta2
            g *= 1 - self.beta2
            m += g
            np.sign(u, out=u)
            u *= turn.lr
            p *= 1 - turn.lr * self.weight_decay
            p -= u


RULE = Lion
