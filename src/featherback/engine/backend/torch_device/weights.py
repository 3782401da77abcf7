"""Stored weights on the device: bytes as they are in the file, unpacked by tile where a product reads them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from featherback.engine.backend.torch_device.arrays import Limits, fused
from featherback.engine.backend.torch_device.unpacking import UNPACK
from featherback.engine.formats.types import TensorType

Rows = slice
ALIGNED = 64
"""Rows of a tile are a multiple of this: a GPU multiplies unaligned columns of dy at half the speed."""


class Weight:
    """A stored weight, or a rectangle of one: `blocks` (rows, blocks, bytes), uint8, and the columns [first, last).

    `limits`: how many weights are unpacked at a time.
    """

    def __init__(self, blocks: Tensor, kind: TensorType, first: int, last: int, limits: Limits) -> None:
        self._blocks, self._kind, self._first, self._last, self._limits = blocks, kind, first, last, limits
        self.shape = (len(blocks), last - first)

    @classmethod
    def of(cls, kind: TensorType, cols: int, data: Tensor, limits: Limits) -> Weight:
        """Return the weight (rows, cols) with these bytes, row by row, stored as a type of UNPACK."""
        blocks = cols // kind.block_size
        return cls(data.view(-1, blocks, kind.row_bytes(cols) // blocks), kind, 0, cols, limits)

    def slice(self, rows: tuple[int, int] | None = None, cols: tuple[int, int] | None = None) -> Weight:
        """Return the rectangle [rows) x [cols)."""
        size = self._kind.block_size
        begin, end = rows or (0, self.shape[0])
        left, right = cols or (0, self.shape[1])
        first, last = self._first + left, self._first + right
        skipped = first // size
        blocks = self._blocks[begin:end, skipped : -(-last // size)]
        return Weight(blocks, self._kind, first - skipped * size, last - skipped * size, self._limits)

    def tiles(self, dtype: torch.dtype) -> Iterator[tuple[Rows, Tensor]]:
        """Yield ranges of rows with their weights (n, cols) in float32 or bf16."""
        rows, cols = self.shape
        step = max(1, self._limits.tile // cols)
        if step > ALIGNED:
            step = step // ALIGNED * ALIGNED
        for begin in range(0, rows, step):
            part = slice(begin, min(rows, begin + step))
            yield part, self._unpacked(self._blocks[part], dtype)

    def _unpacked(self, blocks: Tensor, dtype: torch.dtype) -> Tensor:
        if blocks.is_cuda and self._kind in fused("unpacking").KERNELS:
            values = fused("unpacking").unpack(self._kind, blocks, dtype)
        else:
            values = UNPACK[self._kind](blocks.reshape(-1, blocks.shape[-1])).view(len(blocks), -1)
        return values[:, self._first : self._last].to(dtype)


class Dense:
    """An array (rows, cols) as a weight."""

    def __init__(self, values: Tensor) -> None:
        self._values, self.shape = values, tuple(values.shape)

    def slice(self, rows: tuple[int, int] | None = None, cols: tuple[int, int] | None = None) -> Dense:
        """Return the rectangle [rows) x [cols)."""
        return Dense(self._values[slice(*(rows or (None,))), slice(*(cols or (None,)))])

    def tiles(self, dtype: torch.dtype) -> Iterator[tuple[Rows, Tensor]]:
        """Yield all rows with their weights (rows, cols) in float32 or bf16."""
        yield slice(None), self._values.to(dtype)
