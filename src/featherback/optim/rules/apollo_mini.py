"""APOLLO-Mini: APOLLO with sketches of rank 1 and one factor a matrix (Zhu et al., MLSys 2025, arXiv 2412.05270)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from featherback.optim.rule import Float32
from featherback.optim.rules.adamw import AdamW
from featherback.optim.rules.apollo import TINY, ScaledGradient
from featherback.options import option


@dataclass(frozen=True, kw_only=True)
class ApolloMini(ScaledGradient):
    __doc__ = f"{ScaledGradient.__doc__}\n    The rank is 1; |N| and |S| are lengths of the whole."

    # Steps are sqrt(128 / smaller dimension) as large as AdamW's.
    FULL_LEARNING_RATE: ClassVar[float] = 2 * AdamW.FULL_LEARNING_RATE

    apollo_scale: float = option(128.0, above=0, help="Square of a factor of the scaled gradient.")

    def rank(self, shape: tuple[int, int]) -> int:
        return 1

    def factors(self, normalised: Float32, sketched: Float32) -> Float32:
        whole = (math.sqrt(float(squares.sum(dtype=np.float64))) for squares in (normalised, sketched))
        normalised.fill(next(whole) / (next(whole) + TINY))
        return normalised


RULE = ApolloMini
