"""Lion: steps by the sign of a momentum (Chen et al., NeurIPS 2023, arXiv 2302.06675). Half of AdamW's state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from featherback.core.options import option
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.optim.rule import Elementwise, StepArgs, piece_rows, pieces
from featherback.optim.rules.adamw import AdamW


@dataclass(frozen=True, kw_only=True)
class Lion(Elementwise):
    """u = sign(beta1 m + (1 - beta1) g);  p = p (1 - lr weight_decay) - lr u;  m = beta2 m + (1 - beta2) g"""

    # The paper advises a rate three to ten times smaller than AdamW's, because every value moves by a whole step.
    LEARNING_RATE: ClassVar[float] = AdamW.LEARNING_RATE / 5
    FULL_LEARNING_RATE: ClassVar[float] = AdamW.FULL_LEARNING_RATE / 5
    WIDTH_POWER: ClassVar[float] = AdamW.WIDTH_POWER
    FULL_WIDTH_POWER: ClassVar[float] = AdamW.FULL_WIDTH_POWER
    STATES: ClassVar[tuple[str, ...]] = ("first_moment",)  # m

    beta1: float = option(
        0.9, least=0, below=1, help="Weight of the momentum in each step; the gradient's weight is 1 - beta1."
    )
    beta2: float = option(0.99, least=0, below=1, help="Decay of the momentum.")
    weight_decay: float = option(0.0, least=0, help="Decoupled weight decay.")

    def change(self, on: Device, values: Array, gradient: Array, states: Sequence[Array], turn: StepArgs) -> None:
        ops = on.ops
        with on.frame():
            names = ("gradient, scaled", "step", "term")
            room = [on.floats(name, piece_rows(values.shape)) for name in names]
            for part in pieces(on, values.shape):
                p, m = values[part], states[0][part]
                g, u, term = (array[: len(p)] for array in room)
                ops.multiply(gradient[part], turn.grad_scale, g)
                ops.multiply(m, self.beta1, u)
                ops.multiply(g, 1 - self.beta1, term)
                ops.add(u, term, u)
                ops.multiply(m, self.beta2, m)
                ops.multiply(g, 1 - self.beta2, g)
                ops.add(m, g, m)
                ops.sign(u, u)
                ops.multiply(u, turn.lr, u)
                ops.multiply(p, 1 - turn.lr * self.weight_decay, p)
                ops.subtract(p, u, p)


RULE = Lion
