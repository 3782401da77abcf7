"""Matrices of Featherback's own type TERNARY in a type that GGUF has: TQ2_0, or F16 if it cannot hold them.

TQ2_0 needs rows of whole blocks of 256 weights that share one scale. The scale is rounded to float16 in both types,
which changes a weight by at most one part in 2048.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.quantize import quantize, tq2_0_blocks
from featherback.engine.formats.store import TensorStore, matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.formats.writer import OutTensor
from featherback.models.streams import copied, floats_of, row_blocks, unmap_pages

_LARGE = TensorType.TQ2_0.block_size


def copied_to_gguf(store: TensorStore, info: TensorInfo) -> OutTensor:
    """The tensor as a GGUF file can hold it: unchanged, unless it is TERNARY."""
    if info.type is not TensorType.TERNARY:
        return OutTensor(info.name, info.type, info.shape, lambda: copied(store.data(info.name)))
    stored = matrix(store, info.name)
    kind = TensorType.TQ2_0 if _has_large_blocks(stored) else TensorType.F16
    return OutTensor(info.name, kind, info.shape, partial(_blocks, stored, kind))


def _has_large_blocks(stored: Matrix) -> bool:
    """Whether each 256 weights of a row have one scale."""
    if stored.cols % _LARGE:
        return False
    for first, last in row_blocks(*stored.shape):
        sizes = _scales(stored.rows_between(first, last)).reshape(-1, _LARGE // stored.type.block_size)
        if (sizes != sizes[:, :1]).any():
            return False
    unmap_pages(stored.data)
    return True


def _scales(rows: Matrix) -> NDArray[np.float32]:
    """The scales of the blocks (n,)."""
    blocks = rows.data.reshape(-1, rows.type.block_bytes)
    return np.ascontiguousarray(blocks[:, :4]).view(np.float32).reshape(-1)


def _blocks(stored: Matrix, kind: TensorType) -> Iterator[memoryview]:
    for first, last in row_blocks(*stored.shape):
        rows = stored.rows_between(first, last)
        if kind is TensorType.TQ2_0:
            scales = _scales(rows)[:: _LARGE // stored.type.block_size]
            signs = np.sign(floats_of(rows)) * np.sign(scales).repeat(_LARGE).reshape(rows.shape)
            data = tq2_0_blocks(scales[:, None], (signs.reshape(-1, _LARGE) + 1).astype(np.uint8))
        else:
            data = quantize(floats_of(rows), kind)
        yield data.reshape(-1).data
        unmap_pages(stored.data)
