"""LOMO: gradient descent fused into the backward pass (Lv et al., ACL 2024, arXiv 2306.09782).

On whole models every optimiser here is fused so, and --max-grad-norm is for every one. What is LOMO's own is the other
clipping that it offers, which needs no pass to find a norm; with both, the norm is clipped first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from featherback.optim.rule import Float32, Turn, pieces
from featherback.optim.rules.sgd import SGD
from featherback.options import option


@dataclass(frozen=True, kw_only=True)
class LOMO(SGD):
    """c = min(max(g, -clip_value), clip_value);  p = p (1 - lr weight_decay) - lr c"""

    clip_value: float = option(0.0, least=0, help="Bound of each element of a gradient; 0 = off.")

    def change(self, values: Float32, gradient: Float32, states: Sequence[Float32], turn: Turn) -> None:
        if self.clip_value == 0:
            return super().change(values, gradient, states, turn)
        for part in pieces(values.shape):
            clipped = gradient[part] * np.float32(turn.grad_scale)
            np.clip(clipped, -self.clip_value, self.clip_value, out=clipped)
            super().change(values[part], clipped, states, turn._replace(grad_scale=1.0))


RULE = LOMO
