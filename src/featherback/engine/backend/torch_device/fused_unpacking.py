"""Blocks of stored weights to numbers in one pass on a GPU: Triton kernels for the types that most models have.

`unpacking` does the same with operations of PyTorch, in five to ten passes over the numbers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from featherback.engine.formats.types import TensorType

GROUPS = 64
"""Groups of weights that share a scale, for each program."""


@triton.jit
def _number(place):
    """Return the float16 numbers at byte addresses, as float32."""
    bits = tl.load(place).to(tl.uint16) | tl.load(place + 1).to(tl.uint16) << 8
    return bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _q4_0(blocks, out, count, in_row, stride, GROUPS: tl.constexpr):
    block = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    inside = block < count
    place = blocks + tl.where(inside, block // in_row * stride + block % in_row * 18, 0)
    scale = _number(place)[:, None]
    byte = tl.arange(0, 16)[None]
    codes = tl.load(place[:, None] + 2 + byte)
    to = out + block[:, None] * 32 + byte
    tl.store(to, (((codes & 15).to(tl.float32) - 8) * scale).to(out.dtype.element_ty), inside[:, None])
    tl.store(to + 16, (((codes >> 4).to(tl.float32) - 8) * scale).to(out.dtype.element_ty), inside[:, None])


@triton.jit
def _q8_0(blocks, out, count, in_row, stride, GROUPS: tl.constexpr):
    block = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    inside = block < count
    place = blocks + tl.where(inside, block // in_row * stride + block % in_row * 34, 0)
    byte = tl.arange(0, 32)[None]
    codes = tl.load(place[:, None] + 2 + byte).to(tl.int8, bitcast=True)
    values = codes.to(tl.float32) * _number(place)[:, None]
    tl.store(out + block[:, None] * 32 + byte, values.to(out.dtype.element_ty), inside[:, None])


@triton.jit
def _q6_k(blocks, out, count, in_row, stride, GROUPS: tl.constexpr):
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)  # 128 weights: half a block
    block, half = group // 2, (group % 2).to(tl.int32)
    inside = block < count
    place = blocks + tl.where(inside, block // in_row * stride + block % in_row * 210, 0)
    step = _number(place + 208)[:, None]
    byte = tl.arange(0, 32)[None]
    high = tl.load((place + 128 + half * 32)[:, None] + byte)
    for run in tl.static_range(4):
        low = tl.load((place + half * 64 + run % 2 * 32)[:, None] + byte)
        code = ((low >> (run // 2 * 4)) & 15) | (((high >> (run * 2)) & 3) << 4)
        scale = tl.load((place + 192 + half * 8 + run * 2)[:, None] + byte // 16).to(tl.int8, bitcast=True)
        values = (code.to(tl.float32) - 32) * (scale.to(tl.float32) * step)
        tl.store(out + group[:, None] * 128 + run * 32 + byte, values.to(out.dtype.element_ty), inside[:, None])


@triton.jit
def _scale_and_minimum(packed, sub):
    """Return the 6-bit scale and minimum of sub-block `sub` from their 12 packed bytes."""
    at, before, after = (
        tl.load(packed + sub),
        tl.load(packed + sub - tl.where(sub < 4, 0, 4)),
        tl.load(packed + sub + 4),
    )
    first = sub < 4
    scale = tl.where(first, at & 63, (after & 15) | ((before >> 6) << 4))
    minimum = tl.where(first, after & 63, (after >> 4) | ((at >> 6) << 4))
    return scale.to(tl.float32), minimum.to(tl.float32)


@triton.jit
def _q4_k(blocks, out, count, in_row, stride, GROUPS: tl.constexpr):
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)  # 64 weights: two sub-blocks
    block, pair = group // 4, (group % 4).to(tl.int32)
    inside = block < count
    place = blocks + tl.where(inside, block // in_row * stride + block % in_row * 144, 0)
    step, least = _number(place), _number(place + 2)
    low_scale, low_minimum = _scale_and_minimum(place + 4, pair * 2)
    high_scale, high_minimum = _scale_and_minimum(place + 4, pair * 2 + 1)
    byte = tl.arange(0, 32)[None]
    codes = tl.load((place + 16 + pair * 32)[:, None] + byte)
    low = (codes & 15).to(tl.float32) * (step * low_scale)[:, None] - (least * low_minimum)[:, None]
    high = (codes >> 4).to(tl.float32) * (step * high_scale)[:, None] - (least * high_minimum)[:, None]
    to = out + group[:, None] * 64 + byte
    tl.store(to, low.to(out.dtype.element_ty), inside[:, None])
    tl.store(to + 32, high.to(out.dtype.element_ty), inside[:, None])


KERNELS = {
    TensorType.Q4_0: (_q4_0, 1),
    TensorType.Q8_0: (_q8_0, 1),
    TensorType.Q4_K: (_q4_k, 4),
    TensorType.Q6_K: (_q6_k, 2),
}
"""A kernel, and the groups in a block."""


def unpack(kind: TensorType, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weights (rows, columns), float32 or bf16, of blocks (rows, blocks, bytes) of a type in KERNELS."""
    kernel, groups = KERNELS[kind]
    rows, in_row, _ = blocks.shape
    out = torch.empty(rows, in_row * kind.block_size, dtype=dtype, device=blocks.device)
    count = rows * in_row
    kernel[(triton.cdiv(count * groups, GROUPS),)](blocks, out, count, in_row, blocks.stride(0), GROUPS)
    return out
