"""bfloat16 in NumPy, held as uint16: the upper half of a float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def to_bf16(values: ArrayLike) -> NDArray[np.uint16]:
    """Round float32 values to the nearest bf16, ties to even; a NaN stays a quiet NaN."""
    single = np.ascontiguousarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    upper, lower = bits >> 16, bits & 0xFFFF
    up = (lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1))
    rounded = (upper + up).astype(np.uint16)
    return np.where(np.isnan(single), (upper | 0x40).astype(np.uint16), rounded)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def widen(array: NDArray[Any]) -> NDArray[Any]:
    """float64 of a float32, float64 or bf16 (uint16) array; other arrays unchanged."""
    if array.dtype == np.uint16:
        array = from_bf16(array)
    if array.dtype.kind != "f":
        return array
    with np.errstate(invalid="ignore"):  # a signalling NaN may come by
        return array.astype(np.float64)


def narrow(values: ArrayLike, dtype: str) -> NDArray[Any]:
    """Values in one of the kernels' element types: "f32", "bf16" (uint16) or "f64"."""
    if dtype == "bf16":
        return to_bf16(values)
    return np.asarray(values, dtype={"f32": np.float32, "f64": np.float64}[dtype])
