"""Blocks of eight bits: 32 numbers share a scale, so each error is at most 1/254 of the block's largest number."""

from __future__ import annotations

from typing import Any

import numpy as np

from featherback.engine.backend.protocol import Array, Operations
from featherback.engine.formats.types import TensorType
from featherback.nn.encodings import Encoding

BLOCK, BYTES = TensorType.Q8_0.block_size, TensorType.Q8_0.block_bytes


class Blocks8(Encoding):
    """Q8_0's blocks, 8.5 bits per number. The last block of a row may cover fewer columns."""

    precision = "8bit"
    in_place = False

    def row(self, width: int, operand: np.dtype[Any]) -> tuple[int, np.dtype[Any]]:
        """Return the bytes of a row, in whole blocks."""
        return self.part(0, width).stop, np.dtype(np.uint8)

    def part(self, first: int, last: int) -> slice:
        """Return the bytes of columns [first, last). `first` must begin a block."""
        assert first % BLOCK == 0
        return slice(first // BLOCK * BYTES, -(-last // BLOCK) * BYTES)

    def store(self, ops: Operations, values: Array, stored: Array) -> None:
        ops.encode(values, stored)

    def load(self, ops: Operations, stored: Array, values: Array) -> None:
        ops.decode(stored, values)


ENCODING = Blocks8()
