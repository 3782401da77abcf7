"""Llama 3's stretched rotary embedding."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def llama3_factors(head_dim: int, theta: float, scaling: Mapping[str, float]) -> NDArray[np.float32]:
    """What divides the inverse frequencies (head_dim/2,), as llama.cpp's `rope_freqs.weight` has it.

    Frequencies whose wavelength is short against the original context stay, long ones are divided by
    `factor`, and between the two the *inverse* of the divisor is interpolated. KeyError if `scaling` lacks
    an entry.
    """
    factor, context = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    kept = np.clip((context / wavelengths - low) / (high - low), 0, 1)  # 1: as it was, 0: divided by `factor`
    return (1 / (kept + (1 - kept) / factor)).astype(np.float32)
