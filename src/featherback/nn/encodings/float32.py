"""In float32, whatever the products compute in."""

from __future__ import annotations

from typing import Any

import numpy as np

from featherback.nn.encodings import Encoding

FLOAT = np.dtype(np.float32)


class Float32(Encoding):
    """Of factors of the attention scores, whose rounding exponentials would amplify."""

    def row(self, width: int, operand: np.dtype[Any]) -> tuple[int, np.dtype[Any]]:
        return width, FLOAT


ENCODING = Float32()
