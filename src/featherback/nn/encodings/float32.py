"""Float32, whatever type the products read."""

from __future__ import annotations

from typing import Any

import numpy as np

from featherback.nn.encodings import Encoding

FLOAT = np.dtype(np.float32)


class Float32(Encoding):
    """For the factors of attention scores, because exponentials would amplify their rounding."""

    def row(self, width: int, operand: np.dtype[Any]) -> tuple[int, np.dtype[Any]]:
        return width, FLOAT


ENCODING = Float32()
