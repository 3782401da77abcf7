"""Rotary position embedding: the angles. The rotation is a kernel, its backward the opposite rotation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from featherback.models.config import ModelConfig

Float32 = NDArray[np.float32]


def inverse_frequencies(config: ModelConfig) -> Float32:
    """theta^(-2i/d), divided by the model's factors if it has any: (head_dim / 2,). In float32, as trained."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequencies = np.float32(1) / np.power(np.float32(config.rope_theta), exponents)
    return frequencies if config.rope_factors is None else frequencies / config.rope_factors


def rope_tables(config: ModelConfig, positions: NDArray[np.int32], cos: Float32, sin: Float32) -> None:
    """Fill cos and sin (T, head_dim / 2). The angle is a float32 product, as when the models were trained."""
    np.multiply(positions.astype(np.float32)[:, None], inverse_frequencies(config)[None], out=cos)
    np.sin(cos, out=sin)
    np.cos(cos, out=cos)
