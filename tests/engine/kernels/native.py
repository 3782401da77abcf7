"""Adapts the native kernels to the checker: by instruction set and operation, with arrays as keywords."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from featherback.engine import kernels
from featherback.engine.formats.types import TensorType

REFERENCE = "reference"
VECTOR_SETS = [name for name in kernels.available() if name != REFERENCE]

TYPES = {kind.name: int(kind) for kind in TensorType}
# Byte offsets of the half-precision fields of each block, and of scales that are powers of two.
HALVES = {
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2),
    "Q6_K": (208,), "IQ4_NL": (0,), "MXFP4": (), "Q2_K": (80, 82), "Q3_K": (108,), "IQ4_XS": (0,), "TQ1_0": (52,),
    "TQ2_0": (64,), "IQ1_S": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,),
    "AFFINE8": (), "TERNARY": (),
}  # fmt: skip
POWERS = {"MXFP4": 0}
# The same for single-precision fields, whose values fit half precision; and the types that `gguf` does not support.
SINGLES = {"AFFINE8": (0, 4), "TERNARY": (0,)}
OWN = {"AFFINE8": (32, 40), "TERNARY": (32, 12)}
# Rough size of a code times its sub-block scale, so that random weights are of order one.
SPREAD = {
    "Q8_0": 74, "Q4_0": 4.6, "Q4_1": 4.6, "Q5_0": 9, "Q5_1": 9, "Q4_K": 170, "Q5_K": 340, "Q6_K": 1400,
    "IQ4_NL": 67, "MXFP4": 5.9, "Q2_K": 14, "Q3_K": 43, "IQ4_XS": 1250, "TQ1_0": 0.8, "TQ2_0": 1.2, "IQ1_S": 7.2,
    "IQ2_XXS": 53, "IQ2_XS": 56, "IQ2_S": 56, "IQ3_XXS": 143, "IQ3_S": 140, "AFFINE8": 150, "TERNARY": 1.2,
}  # fmt: skip


@contextmanager
def using(name: str) -> Iterator[None]:
    before = kernels.current()
    kernels.use(name)
    try:
        yield
    finally:
        kernels.use(before)


def kernel(instruction_set: str, operation: str, **fixed: Any) -> Callable[..., Any]:
    """kernels.<operation> with some arguments given, run on one instruction set."""

    def run(**arrays: Any) -> Any:
        with using(instruction_set):
            return getattr(kernels, operation)(**fixed, **arrays)

    return run


@dataclass(frozen=True)
class Stored:
    """A stored weight, and the values that the independent `gguf` package reads from the same bytes."""

    type: str
    data: NDArray[np.uint8]  # (rows, row_bytes)
    values: NDArray[np.float64]  # (rows, cols)

    @property
    def matrix(self) -> Any:
        rows, cols = self.values.shape
        return kernels.Matrix(self.data.reshape(-1), TYPES[self.type], rows, cols)

    def slice(self, rows: tuple[int, int] | None, cols: tuple[int, int] | None) -> tuple[Any, NDArray[np.float64]]:
        """A rectangle of it: the native handle, and its values."""
        (r0, r1), (c0, c1) = rows or (0, self.values.shape[0]), cols or (0, self.values.shape[1])
        return self.matrix.slice(rows=rows, cols=cols), self.values[r0:r1, c0:c1]


def block(type: str) -> tuple[int, int]:
    """Weights and bytes of a block."""
    if type in OWN:
        return OWN[type]
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]]
    return int(weights), int(size)


def decode(type: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode (rows, bytes) to (rows, weights) with the `gguf` package, or by the type's definition."""
    if type == "AFFINE8":
        blocks = data.reshape(data.shape[0], -1, 40)
        d, m = (np.ascontiguousarray(blocks[:, :, at : at + 4]).view(np.float32) for at in (0, 4))
        return (d * blocks[:, :, 8:].astype(np.float32) + m).reshape(data.shape[0], -1)
    if type == "TERNARY":
        blocks = data.reshape(data.shape[0], -1, 12)
        d, codes = np.ascontiguousarray(blocks[:, :, :4]).view(np.float32), np.ascontiguousarray(blocks[:, :, 4:])
        digits = codes.view("<u8") >> np.arange(0, 64, 2, dtype=np.uint64) & np.uint64(3)
        return (d * (digits.astype(np.float32) - 1)).reshape(data.shape[0], -1)
    return np.asarray(gguf.quants.dequantize(data, gguf.GGMLQuantizationType[type]), dtype=np.float32)


def random_blocks(rng: np.random.Generator, type: str, rows: int, cols: int) -> NDArray[np.uint8]:
    """Random bytes of a quantised type, with scales of either sign that make weights of order one."""
    weights, size = block(type)
    assert cols % weights == 0
    data = rng.integers(0, 256, (rows, cols // weights, size), dtype=np.uint8)
    for offset in HALVES[type]:
        half = rng.uniform(0.5, 1.5, data.shape[:2]) * rng.choice([-1, 1], data.shape[:2]) / SPREAD[type]
        data[:, :, offset : offset + 2] = half.astype(np.float16)[..., None].view(np.uint8)
    for offset in SINGLES.get(type, ()):
        half = rng.uniform(0.5, 1.5, data.shape[:2]) * rng.choice([-1, 1], data.shape[:2]) / SPREAD[type]
        single = half.astype(np.float16).astype(np.float32)
        data[:, :, offset : offset + 4] = single[..., None].view(np.uint8)
    if type in POWERS:  # 2^(byte - 128)
        data[:, :, POWERS[type]] = 128 - round(np.log2(SPREAD[type])) + rng.integers(-1, 2, data.shape[:2])
    return data.reshape(rows, -1)


def stored(rng: np.random.Generator, type: str, rows: int, cols: int) -> Stored:
    """A random weight (rows, cols) of a stored type, of order 1 / sqrt(cols)."""
    if type in HALVES:
        data = random_blocks(rng, type, rows, cols)
        blocks = data.reshape(rows, -1, block(type)[1])
        for offset in HALVES[type]:  # scale every block down
            half = blocks[:, :, offset : offset + 2].copy().view(np.float16).astype(np.float32) / cols**0.5
            blocks[:, :, offset : offset + 2] = half.astype(np.float16).view(np.uint8)
        for offset in SINGLES.get(type, ()):
            single = (blocks[:, :, offset : offset + 4].copy().view(np.float32) / cols**0.5).astype(np.float16)
            blocks[:, :, offset : offset + 4] = single.astype(np.float32).view(np.uint8)
        if type in POWERS:
            blocks[:, :, POWERS[type]] -= np.uint8(round(np.log2(cols) / 2))
    else:
        values = (rng.standard_normal((rows, cols)) / cols**0.5).astype(np.float32)
        if type == "F16":
            data = values.astype(np.float16).view(np.uint8)
        elif type == "BF16":
            data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            data = values.view(np.uint8)
    return Stored(type, data, decode(type, data).astype(np.float64))
