"""ReGELU2 (Yang et al., ICML 2024, Approx-BP): of GELU's input only a code of two bits is kept.

    gelu(z) ~ sum_i a_i relu(z - c_i),  sum a = 1      code = #{i : z > c_i};   slope = the sum of the first `code` a_i

The constants minimise the squared distance of the two functions. The forward pass computes GELU itself, so the loss is
exact; the gradient is that of the four-level slope, which differs from GELU's by up to 0.55 (next to z = 0).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from featherback.engine.backend.protocol import Array, Operations
from featherback.nn.encodings import Encoding

WEIGHTS = (-0.04922261145617846, 1.0979632065417297, -0.048740595085551286)
BOUNDS = (-3.1858810036855245, -0.001178821281161997, 3.190832613414926)
CODES, BYTES = 64, 16
"""Columns in a group of codes, and its bytes."""


class ReGELU2(Encoding):
    """Two bits per number, in groups of 64 columns. The last group of a row may cover fewer columns."""

    precision = "2bit"
    in_place = False
    slopes_of = "gelu_tanh"
    bounds = np.array(BOUNDS, np.float32)
    slopes = np.cumsum([0.0, *WEIGHTS]).astype(np.float32)

    def row(self, width: int, operand: np.dtype[Any]) -> tuple[int, np.dtype[Any]]:
        """Return the bytes of a row, in whole groups."""
        return self.part(0, width).stop, np.dtype(np.uint8)

    def part(self, first: int, last: int) -> slice:
        """Return the bytes of columns [first, last). `first` must begin a group."""
        assert first % CODES == 0
        return slice(first // CODES * BYTES, -(-last // CODES) * BYTES)

    def store(self, ops: Operations, values: Array, stored: Array) -> None:
        ops.slope_codes(values, self.bounds, stored)

    def load(self, ops: Operations, stored: Array, values: Array) -> None:
        raise NotImplementedError("a code has a slope, not a value")

    def backward(self, ops: Operations, da: Array, stored: Array, dz: Array) -> None:
        ops.slope_backward(da, stored, self.slopes, dz)


ENCODING = ReGELU2()
