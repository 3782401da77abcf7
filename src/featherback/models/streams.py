"""Read, convert and copy stored weights a few rows at a time, in little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from featherback.core.naming import argument
from featherback.engine import kernels
from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.quantize import quantize
from featherback.engine.formats.types import TensorType
from featherback.engine.formats.writer import Buffer, OutTensor
from featherback.errors import FeatherbackError

VALUES = 1 << 18
"""Number of weights that are held in memory at once."""
PIECE = 1 << 20
"""Number of bytes that are copied at once."""


def row_blocks(rows: int, cols: int) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, last) of rows that hold about VALUES weights each, at least one row."""
    step = max(1, VALUES // cols)
    return ((first, min(first + step, rows)) for first in range(0, rows, step))


def floats_of(matrix: Matrix) -> NDArray[np.float32]:
    """Dequantise a matrix, or rows of one, to float32 (rows, cols)."""
    values = np.empty(matrix.shape, np.float32)
    kernels.dequantize(kernels.matrix(matrix), values)
    return values


def unmap_pages(*views: NDArray[np.uint8]) -> None:
    """Unmap all pages of the files that hold these bytes.

    Unmapping only these bytes is not enough: touching the bytes after them maps up to 2 MB around, including pages that
    were read before.
    """
    files = (view if view.base is None else view.base for view in views)
    for file in {id(file): file for file in files}.values():
        kernels.drop_pages(file)


def copied(data: NDArray[np.uint8]) -> Iterator[memoryview]:
    """Yield mapped bytes piece by piece, and unmap their pages."""
    for at in range(0, data.size, PIECE):
        piece = data[at : at + PIECE]
        yield piece.data
        unmap_pages(data)


def picked(matrix: Matrix, wanted: range) -> Iterator[Matrix]:
    """Yield some rows of a mapped matrix, a few at a time, and unmap its pages."""
    table = matrix.data.reshape(matrix.rows, matrix.row_bytes)
    for first, last in row_blocks(len(wanted), matrix.cols):
        some = wanted[first:last]
        data = np.ascontiguousarray(table[some.start : some.stop : some.step]).reshape(-1)
        yield Matrix(data, matrix.type, len(some), matrix.cols, matrix.file)
        unmap_pages(matrix.data)


def quantized(matrix: Matrix, kind: TensorType, name: str) -> Iterator[memoryview]:
    """Yield the bytes of a mapped matrix converted to `kind`, and unmap its pages.

    Raises FeatherbackError as `quantized_rows` does.
    """
    return (quantized_rows(rows, kind, name) for rows in picked(matrix, range(matrix.rows)))


def quantized_rows(rows: Matrix, kind: TensorType, name: str) -> memoryview:
    """Return the bytes of rows of the tensor `name`, converted to `kind`.

    Raises FeatherbackError, naming the tensor, if `kind` cannot represent one of its values.
    """
    try:
        with np.errstate(over="raise", invalid="raise"):
            return quantize(_finite(floats_of(rows)), kind).data
    except FloatingPointError:
        raise FeatherbackError(
            f"Tensor {name} of {rows.home} holds a value that {kind.name} cannot represent; "
            f"remove {argument('quantize')}."
        ) from None


def counted(tensors: Iterable[OutTensor], wrote: Callable[[int], None]) -> list[OutTensor]:
    """Return the tensors, which now call `wrote` with the number of bytes after each piece is written."""
    return [replace(tensor, chunks=partial(_counting, tensor, wrote)) for tensor in tensors]


def _counting(tensor: OutTensor, wrote: Callable[[int], None]) -> Iterator[Buffer]:
    for chunk in tensor.chunks():
        yield chunk
        wrote(len(chunk))


def _finite(values: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.isfinite(values).all():
        raise FloatingPointError("not finite")
    return values
