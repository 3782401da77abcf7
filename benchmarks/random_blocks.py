"""Random weights in any stored format, drawn code by code, so that every code occurs."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.quantize import quantize
from featherback.engine.formats.types import TensorType

Floats = NDArray[np.float64]

# How a number that is no code stands in a block.
_STORED: dict[str, Callable[[np.random.Generator, Floats], NDArray[Any]]] = {
    "f16": lambda rng, values: values.astype("<f2"),
    "f32": lambda rng, values: values.astype("<f2").astype("<f4"),  # no more digits than there are in use
    "e8m0": lambda rng, values: _powers(rng, values),
}


def random_blocks(rng: np.random.Generator, kind: TensorType, count: int, std: float) -> NDArray[np.uint8]:
    """Bytes of `count` blocks of random weights, of mean about 0 and standard deviation about `std`."""
    if kind.block_size == 1:
        return quantize(rng.standard_normal(count, dtype=np.float32) * np.float32(std), kind)
    blocks = rng.integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)
    scale = std / kind.spread * rng.uniform(0.75, 1.25, count)
    if kind.offset_field:
        _put(rng, blocks, kind.offset_field, scale * kind.centre)
    else:  # the mean is 0 by a random sign
        scale *= rng.choice((-1.0, 1.0), count)
    _put(rng, blocks, kind.scale_field, scale)
    return blocks.reshape(-1)


def _put(rng: np.random.Generator, blocks: NDArray[np.uint8], field: tuple[str, int], values: Floats) -> None:
    """Store one number per block; `field` is its format and its first byte."""
    number, at = field
    stored = _STORED[number](rng, values).reshape(-1, 1).view(np.uint8)
    blocks[:, at : at + stored.shape[1]] = stored


def _powers(rng: np.random.Generator, values: Floats) -> NDArray[np.uint8]:
    """Bytes of 2^(byte - 128), one of the two powers of two around each |value|: their mean square is its."""
    lower = np.floor(np.log2(np.abs(values)))
    excess = (np.abs(values) / 2.0**lower) ** 2  # 1 to 4
    return (lower + 128 + (rng.random(values.shape) * 3 < excess - 1)).astype(np.uint8)
