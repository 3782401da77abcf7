"""Rotary position embedding: the angles. The rotation is a kernel, its backward the opposite rotation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Rotary:
    """The rotation of heads of `head_dim` columns. Layers that share one share its tables."""

    theta: float
    head_dim: int
    interleaved: bool  # rotate neighbours (GGUF's llama) instead of halves
    factors: Float32 | None = None  # (d / 2,), divide the inverse frequencies
    rotated: int | None = None  # d: columns of a head that are rotated, its first; None: all
    attention_factor: float = 1.0  # of cosines and sines
    beyond: tuple[int, Float32] | None = None  # (n, factors): in sequences of more than n tokens

    @property
    def dim(self) -> int:
        """d, the columns of a head that are rotated."""
        return self.head_dim if self.rotated is None else self.rotated

    def stretches(self, length: int) -> bool:
        """Whether a sequence of this many tokens takes the factors of long ones."""
        return self.beyond is not None and length > self.beyond[0]

    def inverse_frequencies(self, length: int) -> Float32:
        """theta^(-2i/d), divided by the factors if there are any: (d / 2,). In float32, as trained.

        `length`: tokens of the whole sequence, which may decide on the factors.
        """
        exponents = np.arange(0, self.dim, 2, dtype=np.float32) / np.float32(self.dim)
        frequencies = np.float32(1) / np.power(np.float32(self.theta), exponents)
        factors = self.factors
        if self.beyond is not None and self.stretches(length):
            factors = self.beyond[1]
        return frequencies if factors is None else frequencies / factors
