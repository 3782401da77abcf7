"""LOMO: gradient descent fused into the backward pass (Lv et al., ACL 2024, arXiv 2306.09782).

On whole models every optimiser here is fused that way and supports --max-grad-norm. LOMO adds clipping by
value, which needs no pass to compute a norm. If both are set, the norm is clipped first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from featherback.core.options import option
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.optim.rule import StepArgs, piece_rows, pieces
from featherback.optim.rules.sgd import SGD


@dataclass(frozen=True, kw_only=True)
class LOMO(SGD):
    """c = min(max(g, -clip_value), clip_value);  p = p (1 - lr weight_decay) - lr c"""

    clip_value: float = option(0.0, least=0, help="Clip each element of the gradient to this magnitude; 0 = off.")

    def change(self, on: Device, values: Array, gradient: Array, states: Sequence[Array], turn: StepArgs) -> None:
        if self.clip_value == 0:
            return super().change(on, values, gradient, states, turn)
        with on.frame():
            room = on.floats("gradient, clipped", piece_rows(values.shape))
            for part in pieces(on, values.shape):
                clipped = room[: len(values[part])]
                on.ops.multiply(gradient[part], turn.grad_scale, clipped)
                on.ops.clip(clipped, -self.clip_value, self.clip_value, clipped)
                super().change(on, values[part], clipped, states, turn._replace(grad_scale=1.0))


RULE = LOMO
