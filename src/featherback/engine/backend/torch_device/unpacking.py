"""Blocks of stored weights to numbers, with operations of PyTorch: blocks (n, bytes), uint8, to (n, weights), float32.

`csrc/quant/formats` describes the layouts. The results are the same as there, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from featherback.engine.formats.types import TensorType

Unpack = Callable[[Tensor], Tensor]


def _half(blocks: Tensor, first: int) -> Tensor:
    """Return the float16 number at byte `first` of each block, (n, 1), float32."""
    return blocks[:, first : first + 2].contiguous().view(torch.float16).float()


def _nibbles(codes: Tensor) -> Tensor:
    """Return the low nibbles of (..., k) bytes, then the high ones, (..., 2 k)."""
    return torch.cat((codes & 15, codes >> 4), -1)


def _q4_0(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 2:]).float() - 8) * _half(blocks, 0)


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 4:]).float() * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float() * _half(blocks, 0)


def _q4_k(blocks: Tensor) -> Tensor:
    packed = blocks[:, 4:16]
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((low & 63, (high & 15) | (low >> 6) << 4), 1)  # (n, 8)
    minima = torch.cat((middle & 63, (high >> 4) | (middle >> 6) << 4), 1)
    step, least = scales.float() * _half(blocks, 0), minima.float() * _half(blocks, 2)
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).view(-1, 8, 32)
    return (codes.float() * step[..., None] - least[..., None]).view(len(blocks), 256)


def _q6_k(blocks: Tensor) -> Tensor:
    low = blocks[:, :128].reshape(-1, 2, 2, 32)  # half, run % 2
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    four = torch.stack((low & 15, low >> 4), 2).view(-1, 2, 4, 32)  # half, run
    two = torch.stack([high >> 2 * run & 3 for run in range(4)], 2)
    steps = blocks[:, 192:208].contiguous().view(torch.int8).float() * _half(blocks, 208)  # (n, 16)
    levels = ((four | two << 4).float() - 32).view(-1, 16, 16)
    return (levels * steps[..., None]).view(len(blocks), 256)


UNPACK: dict[TensorType, Unpack] = {
    TensorType.F32: lambda blocks: blocks.view(torch.float32),
    TensorType.F16: lambda blocks: blocks.view(torch.float16).float(),
    TensorType.BF16: lambda blocks: blocks.view(torch.bfloat16).float(),
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q8_0: _q8_0,
    TensorType.Q4_K: _q4_k,
    TensorType.Q6_K: _q6_k,
}
