"""Adafactor: factored second moments (Shazeer and Stern, ICML 2018, arXiv 1804.04235), without momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from featherback.optim.rule import StepArgs
from featherback.optim.rules.adalomo import AdaLomo


@dataclass(frozen=True, kw_only=True)
class Adafactor(AdaLomo):
    """R, C and U as in AdaLomo.  s = min(lr, 1 / sqrt(step)) max(1e-3, rms(p))
    p = p (1 - lr weight_decay) - s U

    lr is relative to the tensor's size, the decay is not, as in PyTorch.
    """

    FULL_LEARNING_RATE: ClassVar[float] = 1e-3

    def rates(self, turn: StepArgs, size: float) -> tuple[float, float]:
        return min(turn.lr, turn.step**-0.5) * size, turn.lr * self.weight_decay


RULE = Adafactor
