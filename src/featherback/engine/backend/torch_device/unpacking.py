"""Blocks of stored weights to numbers, with operations of PyTorch: blocks (n, bytes), uint8, to (n, weights), float32.

`csrc/quant/formats` describes the layouts. The results are the same as there, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from featherback.engine.formats.types import TensorType

Unpack = Callable[[Tensor], Tensor]
BLOCK = TensorType.Q8_0.block_size


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


def _fifth_bits(blocks: Tensor, first: int) -> Tensor:
    """Return the 32 bits from byte `first` on of each block, one by one, (n, 32)."""
    places = torch.arange(8, device=blocks.device, dtype=torch.uint8)
    return (blocks[:, first : first + 4, None] >> places & 1).view(-1, 32)


def _q5_0(blocks: Tensor) -> Tensor:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2) << 4
    return (codes.float() - 16) * _half(blocks, 0)


def _q5_1(blocks: Tensor) -> Tensor:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4) << 4
    return codes.float() * _half(blocks, 0) + _half(blocks, 2)


_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""Those of IQ4_NL and IQ4_XS."""


def _levels(codes: Tensor) -> Tensor:
    return torch.tensor(_LEVELS, dtype=torch.float32, device=codes.device)[codes.long()]


def _iq4_nl(blocks: Tensor) -> Tensor:
    return _levels(_nibbles(blocks[:, 2:])) * _half(blocks, 0)


def _iq4_xs(blocks: Tensor) -> Tensor:
    runs = torch.arange(8, device=blocks.device, dtype=torch.uint8)
    low = blocks[:, 4:8].repeat_interleave(2, 1) >> runs % 2 * 4 & 15
    high = blocks[:, 2:4].repeat_interleave(4, 1) >> runs % 4 * 2 & 3
    steps = ((low | high << 4).float() - 32) * _half(blocks, 0)
    levels = _levels(_nibbles(blocks[:, 8:].reshape(-1, 8, 16)))
    return (levels * steps[..., None]).view(len(blocks), 256)


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the steps and the offsets of the eight runs of a block of Q4_K or Q5_K, (n, 8)."""
    packed = blocks[:, 4:16]
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((low & 63, (high & 15) | (low >> 6) << 4), 1)
    minima = torch.cat((middle & 63, (high >> 4) | (middle >> 6) << 4), 1)
    return scales.float() * _half(blocks, 0), minima.float() * _half(blocks, 2)


def _q4_k(blocks: Tensor) -> Tensor:
    step, least = _scales_and_minima(blocks)
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).view(-1, 8, 32)
    return (codes.float() * step[..., None] - least[..., None]).view(len(blocks), 256)


def _q5_k(blocks: Tensor) -> Tensor:
    step, least = _scales_and_minima(blocks)
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).view(-1, 8, 32)
    runs = torch.arange(8, device=blocks.device, dtype=torch.uint8)[:, None]
    codes = codes | (blocks[:, None, 16:48] >> runs & 1) << 4
    return (codes.float() * step[..., None] - least[..., None]).view(len(blocks), 256)


def _two_bits(codes: Tensor) -> Tensor:
    """Return the 256 codes of two bits in (n, 64) bytes, as (n, 2, 4, 32)."""
    halves = codes.reshape(-1, 2, 32)
    return torch.stack([halves >> 2 * run & 3 for run in range(4)], 2)


def _q2_k(blocks: Tensor) -> Tensor:
    steps = (blocks[:, :16] & 15).float() * _half(blocks, 80)
    least = (blocks[:, :16] >> 4).float() * _half(blocks, 82)
    codes = _two_bits(blocks[:, 16:80]).view(-1, 16, 16)
    return (codes.float() * steps[..., None] - least[..., None]).view(len(blocks), 256)


def _q3_k(blocks: Tensor) -> Tensor:
    packed = blocks[:, 96:108]
    low = _nibbles(packed[:, :8])  # (n, 16)
    high = torch.stack([packed[:, 8:] >> 2 * run & 3 for run in range(4)], 1).view(-1, 16)
    steps = ((low | high << 4).float() - 32) * _half(blocks, 108)
    runs = torch.arange(8, device=blocks.device, dtype=torch.uint8)[:, None]
    third = (blocks[:, None, :32] >> runs & 1).view(-1, 2, 4, 32)
    codes = (_two_bits(blocks[:, 32:96]) | third << 2).view(-1, 16, 16)
    return ((codes.float() - 4) * steps[..., None]).view(len(blocks), 256)


def _q6_k(blocks: Tensor) -> Tensor:
    low = blocks[:, :128].reshape(-1, 2, 2, 32)  # half, run % 2
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    four = torch.stack((low & 15, low >> 4), 2).view(-1, 2, 4, 32)  # half, run
    two = torch.stack([high >> 2 * run & 3 for run in range(4)], 2)
    steps = blocks[:, 192:208].contiguous().view(torch.int8).float() * _half(blocks, 208)  # (n, 16)
    levels = ((four | two << 4).float() - 32).view(-1, 16, 16)
    return (levels * steps[..., None]).view(len(blocks), 256)


def _tq2_0(blocks: Tensor) -> Tensor:
    return (_two_bits(blocks[:, :64]).reshape(-1, 256).float() - 1) * _half(blocks, 64)


def _tq1_0(blocks: Tensor) -> Tensor:
    digits = []
    for first, last, count in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = torch.tensor([3**n for n in range(count)], dtype=torch.int32, device=blocks.device)
        turned = blocks[:, None, first:last].int() * powers[:, None] & 255
        digits.append((turned * 3 >> 8).reshape(len(blocks), -1))
    return (torch.cat(digits, 1).float() - 1) * _half(blocks, 52)


def _mxfp4(blocks: Tensor) -> Tensor:
    sizes = torch.tensor(_SIZES, dtype=torch.float32, device=blocks.device)
    codes = _nibbles(blocks[:, 1:]).long()
    levels = torch.where(codes < 8, sizes[codes % 8], -sizes[codes % 8])
    return levels * torch.ldexp(torch.ones_like(levels[:, :1]), blocks[:, :1].int() - 128)


_SIZES = (0, 1, 2, 3, 4, 6, 8, 12)


def _ternary(blocks: Tensor) -> Tensor:
    places = torch.arange(0, 8, 2, device=blocks.device, dtype=torch.uint8)
    codes = (blocks[:, 4:12, None] >> places & 3).view(-1, 32)
    return (codes.float() - 1) * blocks[:, :4].contiguous().view(torch.float32)


def _affine8(blocks: Tensor) -> Tensor:
    ends = blocks[:, :8].contiguous().view(torch.float32)
    return ends[:, :1] * blocks[:, 8:].float() + ends[:, 1:]


UNPACK: dict[TensorType, Unpack] = {
    TensorType.F32: lambda blocks: blocks.view(torch.float32),
    TensorType.F16: lambda blocks: blocks.view(torch.float16).float(),
    TensorType.BF16: lambda blocks: blocks.view(torch.bfloat16).float(),
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q5_1: _q5_1,
    TensorType.Q8_0: _q8_0,
    TensorType.Q2_K: _q2_k,
    TensorType.Q3_K: _q3_k,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
    TensorType.IQ4_NL: _iq4_nl,
    TensorType.IQ4_XS: _iq4_xs,
    TensorType.MXFP4: _mxfp4,
    TensorType.TQ1_0: _tq1_0,
    TensorType.TQ2_0: _tq2_0,
    TensorType.TERNARY: _ternary,
    TensorType.AFFINE8: _affine8,
}


def decode(codes: Tensor, out: Tensor) -> None:
    values = _q8_0(codes.reshape(-1, BLOCK + 2)).view(len(codes), -1)
    out.copy_(values[:, : out.shape[1]])


def encode(x: Tensor, codes: Tensor) -> None:
    """For each block: scale = max |x| / 127, rounded up to half precision; code = nearest(x / scale)."""
    padded = torch.zeros(len(x), codes.shape[1] // (BLOCK + 2) * BLOCK, device=x.device)
    padded[:, : x.shape[1]] = x
    blocks = padded.view(-1, BLOCK)
    exact = blocks.abs().amax(1, keepdim=True) / 127
    scale = exact.half()
    bits = scale.view(torch.int16)
    scale = (bits + (scale.float() < exact).to(torch.int16)).view(torch.float16)
    wide = scale.float()
    levels = torch.where((wide > 0) & wide.isfinite(), (blocks * (1 / wide)).round(), 0).to(torch.int8)
    stored = torch.cat((scale.view(torch.uint8), levels.view(torch.uint8)), 1)
    codes.copy_(stored.view(codes.shape))
