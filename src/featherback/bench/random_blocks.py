"""Random weights in any stored format, drawn code by code, so that every code occurs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.weights.quantize import quantize
from featherback.weights.types import TensorType

# Fields of a block that are not free to be random bytes.
_SCALE_AT = {TensorType.Q6_K: 208}  # byte of the scale `d` (float16), 0 where not named
_OFFSET_AT = {TensorType.Q4_1: 2, TensorType.Q5_1: 2, TensorType.Q4_K: 2, TensorType.Q5_K: 2}

# With codes drawn evenly, a weight w has mean 0 and standard deviation `std` when d = std / spread, and the
# offset, where the format has one, is d * offset. (Formats without one get a random sign on d for the mean.)
# In Q4_K and Q5_K the codes and the offset are multiplied by 6-bit numbers of mean 31.5 and mean square 1323;
# Q6_K's codes by an 8-bit one of mean square 5461.5.
_SPREAD = {
    TensorType.Q4_0: 4.64,
    TensorType.Q4_1: 4.61,
    TensorType.Q5_0: 9.25,
    TensorType.Q5_1: 9.23,
    TensorType.Q8_0: 73.9,
    TensorType.Q4_K: 256.7,
    TensorType.Q5_K: 523.7,
    TensorType.Q6_K: 1365.7,
}
_OFFSET = {TensorType.Q4_1: -7.5, TensorType.Q5_1: -15.5, TensorType.Q4_K: 7.5, TensorType.Q5_K: 15.5}


def random_blocks(rng: np.random.Generator, kind: TensorType, count: int, std: float) -> NDArray[np.uint8]:
    """Bytes of `count` blocks of random weights, of mean about 0 and standard deviation about `std`."""
    if kind.block_size == 1:
        return quantize(rng.standard_normal(count, dtype=np.float32) * np.float32(std), kind)
    blocks = rng.integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)
    scale = std / _SPREAD[kind] * rng.uniform(0.75, 1.25, count)
    if kind in _OFFSET:
        _put_half(blocks, _OFFSET_AT[kind], scale * _OFFSET[kind])
    else:
        scale *= rng.choice((-1.0, 1.0), count)
    _put_half(blocks, _SCALE_AT.get(kind, 0), scale)
    return blocks.reshape(-1)


def _put_half(blocks: NDArray[np.uint8], at: int, values: NDArray[Any]) -> None:
    blocks[:, at : at + 2] = values.astype("<f2").reshape(-1, 1).view(np.uint8)
