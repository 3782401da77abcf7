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
    factors: Float32 | None = None  # (head_dim / 2,), divide the inverse frequencies

    def inverse_frequencies(self) -> Float32:
        """theta^(-2i/d), divided by the factors if there are any: (head_dim / 2,). In float32, as trained."""
        exponents = np.arange(0, self.head_dim, 2, dtype=np.float32) / np.float32(self.head_dim)
        frequencies = np.float32(1) / np.power(np.float32(self.theta), exponents)
        return frequencies if self.factors is None else frequencies / self.factors
