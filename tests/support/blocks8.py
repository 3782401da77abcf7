"""Blocks of eight bits in NumPy: 32 numbers of a row share a scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 32


def quantised(x: NDArray[np.float32]) -> tuple[NDArray[np.float16], NDArray[np.int8]]:
    """Scales (T, blocks) and codes (T, blocks, 32) of x (T, n)."""
    rows, columns = x.shape
    padded = np.zeros((rows, -(-columns // BLOCK) * BLOCK), np.float32)
    padded[:, :columns] = x
    blocks = padded.reshape(rows, -1, BLOCK)
    exact = np.abs(blocks).max(axis=2) / np.float32(127)
    with np.errstate(over="ignore"):
        scales = exact.astype(np.float16)
        scales = np.where(scales.astype(np.float32) < exact, np.nextafter(scales, np.float16(np.inf)), scales)
    wide = scales.astype(np.float32)
    usable = np.isfinite(wide) & (wide > 0)
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=usable)
    values = np.where(usable[..., None], blocks, 0) * inverse[..., None]
    return scales, np.rint(values).astype(np.int8)


def encoded(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(T, bytes): the scale of each block, in half precision, and its codes."""
    scales, codes = quantised(x)
    parts = [scales[..., None].view(np.uint8), codes.view(np.uint8)]
    return np.concatenate(parts, axis=2).reshape(len(x), -1)


def rounded(x: NDArray[Any]) -> NDArray[np.float32]:
    """What is decoded of what was encoded of x (T, n)."""
    scales, codes = quantised(x)
    with np.errstate(invalid="ignore"):
        values = scales.astype(np.float32)[..., None] * codes.astype(np.float32)
    return values.reshape(len(x), -1)[:, : x.shape[1]]
