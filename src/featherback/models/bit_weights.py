"""Matrices that a folder stores as floats, although products read them as ternary: w = d * code, code -1, 0 or 1.

d = max(mean |w|, 1e-5) of the whole matrix, and code = nearest(w / d) within [-1, 1]: the rounding of BitNet b1.58
(Ma et al., 2024). The mean is computed in float64 and rounded to float32; a program that computes it in bfloat16 has
another d.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.quantize import ternary_blocks
from featherback.engine.formats.types import TensorType
from featherback.engine.formats.writer import OutTensor
from featherback.errors import FeatherbackError
from featherback.models.streams import floats_of, row_blocks, unmap_pages

LEAST = 1e-5
"""The least d."""

Floats = NDArray[np.float32]


def ternary(matrix: Matrix, name: str) -> OutTensor:
    """Return a mapped matrix as the tensor `name` of a converted file."""
    kind = TensorType.F32 if matrix.cols % TensorType.TERNARY.block_size else TensorType.TERNARY
    return OutTensor(name, kind, matrix.shape, partial(_blocks, matrix, kind, name))


def _blocks(matrix: Matrix, kind: TensorType, name: str) -> Iterator[memoryview]:
    """Yield the bytes of the ternary matrix, a few rows at a time, and unmap its pages."""
    scale = _scale(matrix, name)
    for first, last in row_blocks(*matrix.shape):
        codes = np.clip(np.rint(floats_of(matrix.rows_between(first, last)) / scale), -1, 1)
        yield _stored(codes, scale, kind).reshape(-1).data
        unmap_pages(matrix.data)


def _scale(matrix: Matrix, name: str) -> np.float32:
    """Return d. Raises FeatherbackError if a weight is not finite."""
    total = 0.0
    for first, last in row_blocks(*matrix.shape):
        total += float(np.abs(floats_of(matrix.rows_between(first, last))).sum(dtype=np.float64))
        unmap_pages(matrix.data)
    if not np.isfinite(total):
        raise FeatherbackError(f"Tensor {name} of {matrix.home} holds a value that is not finite.")
    return np.float32(max(total / (matrix.rows * matrix.cols), LEAST))


def _stored(codes: Floats, scale: np.float32, kind: TensorType) -> NDArray[np.uint8]:
    """Return codes (rows, cols), float32, as the bytes of a type."""
    if kind is TensorType.F32:
        return (codes * scale).view(np.uint8)
    blocks = codes.reshape(-1, kind.block_size)
    d = np.full((len(blocks), 1), scale, np.float32)
    return ternary_blocks(d, (blocks + 1).astype(np.uint8))
