"""APOLLO-Mini: APOLLO with sketches of rank 1 and one factor per matrix (Zhu et al., MLSys 2025, arXiv 2412.05270)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from featherback.core.options import option
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.optim.rules.adamw import AdamW
from featherback.optim.rules.apollo import TINY, ScaledGradient


@dataclass(frozen=True, kw_only=True)
class ApolloMini(ScaledGradient):
    __doc__ = f"{ScaledGradient.__doc__}\n    The rank is 1; |N| and |S| are computed over the whole matrix."

    # Steps are sqrt(128 / smaller dimension) times as large as AdamW's.
    FULL_LEARNING_RATE: ClassVar[float] = 2 * AdamW.FULL_LEARNING_RATE

    apollo_scale: float = option(128.0, above=0, help="Updates are multiplied by the square root of this scale.")

    def rank(self, shape: tuple[int, int]) -> int:
        return 1

    def factors(self, on: Device, normalised: Array, sketched: Array) -> None:
        ours, sketch = (math.sqrt(on.ops.total(squares)) for squares in (normalised, sketched))
        on.ops.fill(normalised, ours / (sketch + TINY))


RULE = ApolloMini
