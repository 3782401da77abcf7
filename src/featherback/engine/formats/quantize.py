"""Quantise float32 weights with ggml's simple formulas. Formats that need a search are not supported."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from featherback.engine.formats.types import TensorType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def quantize(weights: ArrayLike, kind: TensorType) -> Bytes:
    """Return `weights` in the format `kind` as bytes (n,), row by row.

    Raises FeatherbackError if the rows (the last axis) do not fill whole blocks, and ValueError for a format without a
    quantiser.
    """
    array = np.ascontiguousarray(weights, dtype=np.float32)
    kind.row_bytes(array.shape[-1])
    if kind not in _QUANTIZERS:
        raise ValueError(f"no quantiser for {kind.name}; supported: {', '.join(k.name for k in _QUANTIZERS)}")
    stored: NDArray[np.generic] = _QUANTIZERS[kind](array.reshape(-1, kind.block_size))
    return np.ascontiguousarray(stored).reshape(-1).view(np.uint8)


def _f32(blocks: Floats) -> Floats:
    return blocks.astype("<f4")


def _f16(blocks: Floats) -> NDArray[np.float16]:
    return blocks.astype("<f2")


def _bf16(blocks: Floats) -> NDArray[np.uint16]:
    """Round to nearest, ties to even. NaN stays NaN."""
    bits = blocks.view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(blocks), (bits >> 16) | 64, rounded).astype("<u2")


def _q8_0(blocks: Floats) -> Bytes:
    """Blocks of d (float16) and 32 signed codes; w = d code."""
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    return np.hstack([_half(scale), _round(blocks * _inverse(scale)).astype(np.int8).view(np.uint8)])


def _q4_0(blocks: Floats) -> Bytes:
    """Blocks of d (float16) and 32 codes of 4 bits; w = d (code - 8). Code 0 is exactly the largest weight."""
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    scale = largest / np.float32(-8)
    codes = np.trunc(blocks * _inverse(scale) + np.float32(8.5)).clip(0, 15).astype(np.uint8)
    return np.hstack([_half(scale), _nibbles(codes)])


def _q4_1(blocks: Floats) -> Bytes:
    """Blocks of d and m (float16) and 32 codes of 4 bits; w = d code + m."""
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    scale = (high - low) / np.float32(15)
    codes = np.trunc((blocks - low) * _inverse(scale) + np.float32(0.5)).clip(0, 15).astype(np.uint8)
    return q4_1_blocks(scale, low, codes)


def _q5_0(blocks: Floats) -> Bytes:
    """Blocks of d (float16), the fifth bits, and 32 codes of 4 bits; w = d (code - 16)."""
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    scale = largest / np.float32(-16)
    codes = np.trunc(blocks * _inverse(scale) + np.float32(16.5)).clip(0, 31).astype(np.uint8)
    return np.hstack([_half(scale), _fifth_bits(codes), _nibbles(codes & 15)])


def _q5_1(blocks: Floats) -> Bytes:
    """Blocks of d and m (float16), the fifth bits, and 32 codes of 4 bits; w = d code + m."""
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    scale = (high - low) / np.float32(31)
    codes = np.trunc((blocks - low) * _inverse(scale) + np.float32(0.5)).clip(0, 31).astype(np.uint8)
    return np.hstack([_half(scale), _half(low), _fifth_bits(codes), _nibbles(codes & 15)])


def q4_1_blocks(scale: Floats, offset: Floats, codes: Bytes) -> Bytes:
    """Return Q4_1 blocks (n, 20) from scales and offsets (n, 1), rounded to float16, and codes (n, 32) below 16."""
    return np.hstack([_half(scale), _half(offset), _nibbles(codes)])


def affine8_blocks(scale: Floats, offset: Floats, codes: Bytes) -> Bytes:
    """Return AFFINE8 blocks (n, 40) from scales and offsets (n, 1) and codes (n, 32)."""
    return np.hstack([_f32(scale).view(np.uint8), _f32(offset).view(np.uint8), codes])


def mxfp4_blocks(exponents: Bytes, pairs: Bytes) -> Bytes:
    """Return MXFP4 blocks (n, 17) from exponents (n, 1) and pairs of neighbouring codes (n, 16), the first lower."""
    codes = np.empty((len(pairs), 32), np.uint8)
    np.bitwise_and(pairs, 15, out=codes[:, ::2])
    np.right_shift(pairs, 4, out=codes[:, 1::2])
    return np.hstack([exponents, _nibbles(codes)])


def ternary_blocks(scale: Floats, codes: Bytes) -> Bytes:
    """Return TERNARY blocks (n, 12) from scales (n, 1) and codes (n, 32) below 3."""
    fours = codes.reshape(len(codes), 8, 4) << np.arange(0, 8, 2, dtype=np.uint8)
    return np.hstack([_f32(scale).view(np.uint8), np.bitwise_or.reduce(fours, axis=2)])


def tq2_0_blocks(scale: Floats, codes: Bytes) -> Bytes:
    """Return TQ2_0 blocks (n, 66) from scales (n, 1), rounded to float16, and codes (n, 256) below 3."""
    fours = codes.reshape(len(codes), 2, 4, 32) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return np.hstack([np.bitwise_or.reduce(fours, axis=2).reshape(len(codes), 64), _half(scale)])


def _inverse(scale: Floats) -> Floats:
    """Return 1 / scale, or 0 where the block is all zeros."""
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)


def _round(values: Floats) -> Floats:
    """Round half away from zero, as C's roundf does."""
    return np.copysign(np.floor(np.abs(values) + np.float32(0.5)), values)


def _half(values: Floats) -> Bytes:
    """Return a column (n, 1) of float32 as bytes (n, 2) of float16."""
    return values.astype("<f2").view(np.uint8)


def _nibbles(codes: Bytes) -> Bytes:
    """Pack codes (n, 32) into (n, 16), with the first half of a block in the low nibbles."""
    return codes[:, :16] | codes[:, 16:] * np.uint8(16)


def _fifth_bits(codes: Bytes) -> Bytes:
    """Pack the highest bits of codes (n, 32) below 32 into (n, 4), with the first code in the lowest bit."""
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def quantizable(kind: TensorType) -> bool:
    """Return whether `quantize` supports this format."""
    return kind in _QUANTIZERS


_QUANTIZERS: dict[TensorType, Callable[[Floats], NDArray[np.generic]]] = {
    TensorType.F32: _f32,
    TensorType.F16: _f16,
    TensorType.BF16: _bf16,
    TensorType.Q8_0: _q8_0,
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q5_1: _q5_1,
}
