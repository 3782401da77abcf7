"""Stored weights read through in little memory, a few rows at a time."""

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
"""Weights that are held at once, in a handful of arrays."""
PIECE = 1 << 20
"""Bytes that are copied at once."""


def row_blocks(rows: int, cols: int) -> Iterator[tuple[int, int]]:
    """[first, last) of as many rows at a time as hold VALUES weights, at least one."""
    step = max(1, VALUES // cols)
    return ((first, min(first + step, rows)) for first in range(0, rows, step))


def floats_of(matrix: Matrix) -> NDArray[np.float32]:
    """A matrix, or rows of one, as float32 (rows, cols)."""
    values = np.empty(matrix.shape, np.float32)
    kernels.dequantize(kernels.matrix(matrix), values)
    return values


def give_back(*views: NDArray[np.uint8]) -> None:
    """Unmap all pages of the files that these mapped bytes lie in.

    Not only those bytes: touching what follows them maps up to 2 MB around it, what was read before among it.
    """
    files = (view if view.base is None else view.base for view in views)
    for file in {id(file): file for file in files}.values():
        kernels.drop_pages(file)


def copied(data: NDArray[np.uint8]) -> Iterator[memoryview]:
    """Mapped bytes, piece by piece; their pages are given back."""
    for at in range(0, data.size, PIECE):
        piece = data[at : at + PIECE]
        yield piece.data
        give_back(data)


def quantized(matrix: Matrix, kind: TensorType, name: str) -> Iterator[memoryview]:
    """The bytes of a mapped matrix stored as `kind`; its pages are given back.

    FeatherbackError, naming the tensor, if it holds a value that `kind` cannot.
    """
    for first, last in row_blocks(*matrix.shape):
        rows = matrix.rows_between(first, last)
        try:
            with np.errstate(over="raise", invalid="raise"):
                data = quantize(_finite(floats_of(rows)), kind)
        except FloatingPointError:
            raise FeatherbackError(
                f"Tensor {name} of {matrix.home} holds a value that {kind.name} cannot; "
                f"leave {argument('quantize')} out."
            ) from None
        yield data.data
        give_back(matrix.data)


def counted(tensors: Iterable[OutTensor], wrote: Callable[[int], None]) -> list[OutTensor]:
    """The tensors; `wrote` is told of every piece of their bytes, how many there are, once it is written."""
    return [replace(tensor, chunks=partial(_told, tensor, wrote)) for tensor in tensors]


def _told(tensor: OutTensor, wrote: Callable[[int], None]) -> Iterator[Buffer]:
    for chunk in tensor.chunks():
        yield chunk
        wrote(len(chunk))


def _finite(values: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.isfinite(values).all():
        raise FloatingPointError("not finite")
    return values
