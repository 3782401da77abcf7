"""ReGELU2 in NumPy: its constants as published, codes of two bits, and the bytes that hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

A = (-0.04922261145617846, 1.0979632065417297, -0.048740595085551286)
C = (-3.1858810036855245, -0.001178821281161997, 3.190832613414926)
SLOPES = (0.0, A[0], A[0] + A[1], A[0] + A[1] + A[2])


def codes(z: NDArray[Any], bounds: Any = C) -> NDArray[np.int64]:
    """The number of bounds that each z exceeds, 0 to 3."""
    return sum(z > bound for bound in np.asarray(bounds, np.float32)).astype(np.int64)  # type: ignore[union-attr]


def code_bytes(found: NDArray[Any]) -> NDArray[np.uint8]:
    """(T, bytes): in 16 bytes, byte j has the codes of columns j, 16 + j, 32 + j and 48 + j, the first lowest."""
    rows, columns = found.shape
    padded = np.zeros((rows, -(-columns // 64) * 64), np.uint8)
    padded[:, :columns] = found
    groups = padded.reshape(rows, -1, 4, 16)
    return (groups << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(axis=2, dtype=np.uint8).reshape(rows, -1)
