"""Rotary position embedding (Su et al., 2021, arXiv 2104.09864): the angles.

The rotation itself is a kernel. Its backward pass is the opposite rotation (docs/derivations/rope.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Rotary:
    """The rotation of heads of `head_dim` columns. Layers that share a Rotary share its tables."""

    theta: float
    head_dim: int
    interleaved: bool  # rotate neighbouring columns (GGUF's llama family) instead of halves
    factors: Float32 | None = None  # (d / 2,), divisors of the inverse frequencies
    rotated: int | None = None  # d: the first d columns of a head are rotated; None: all
    attention_factor: float = 1.0  # multiplies cosines and sines
    beyond: tuple[int, Float32] | None = None  # (n, factors): the factors for sequences of more than n tokens

    @property
    def dim(self) -> int:
        """d, the number of rotated columns of a head."""
        return self.head_dim if self.rotated is None else self.rotated

    def uses_long_factors(self, length: int) -> bool:
        """Return whether a sequence of this many tokens uses the factors for long ones."""
        return self.beyond is not None and length > self.beyond[0]

    def inverse_frequencies(self, length: int) -> Float32:
        """Return theta^(-2i/d) divided by the factors, (d / 2,), in float32 as the models were trained.

        `length`: tokens of the whole sequence, which may select the factors.
        """
        exponents = np.arange(0, self.dim, 2, dtype=np.float32) / np.float32(self.dim)
        frequencies = np.float32(1) / np.power(np.float32(self.theta), exponents)
        factors = self.factors
        if self.beyond is not None and self.uses_long_factors(length):
            factors = self.beyond[1]
        return frequencies if factors is None else frequencies / factors
