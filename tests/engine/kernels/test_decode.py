"""Stored weights are decoded exactly as the independent `gguf` package reads them, on every instruction set.

Exactly means equal as float32: no format needs more than one rounding (see csrc/quant/decode.h).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.kernels.native import (
    HALVES,
    POWERS,
    SINGLES,
    TYPES,
    Stored,
    block,
    decode,
    kernel,
    random_blocks,
    stored,
)
from tests.support.bf16 import to_bf16, widen
from tests.support.guard import Guarded
from tests.support.sweep import sweep

from featherback.engine import kernels

QUANTISED = list(HALVES)
SETS = kernels.available()
# Halves that exercise the conversion: zeros, the ends of the subnormals, their neighbours, one, the largest.
SCALES = [
    0x0000,
    0x8000,
    0x0001,
    0x8001,
    0x0200,
    0x03FF,
    0x83FF,
    0x0400,
    0x8400,
    0x3C00,
    0xBC00,
    0x2E66,
    0x7BFF,
    0xFBFF,
]


def dequantize(instruction_set: str, matrix: Any, shape: tuple[int, int], dtype: Any = np.float32) -> NDArray[Any]:
    out = Guarded(shape, dtype)
    kernel(instruction_set, "dequantize")(w=matrix, out=out.view)
    assert out.surroundings_intact()
    return out.view


def assert_same_floats(ours: NDArray[Any], expected: NDArray[Any]) -> None:
    """Return whether values are equal, also in bf16. A NaN equals any NaN."""
    np.testing.assert_array_equal(widen(ours), widen(expected))


def set_halves(data: NDArray[np.uint8], type: str, halves: list[NDArray[np.uint16]]) -> None:
    blocks = data.reshape(data.shape[0], -1, block(type)[1])
    for offset, bits in zip(HALVES[type], halves):
        blocks[:, :, offset : offset + 2] = bits.astype("<u2").reshape(blocks.shape[:2])[..., None].view(np.uint8)
    for offset, bits in zip(SINGLES.get(type, ()), halves):
        single = bits.astype(np.uint16).view(np.float16).astype(np.float32).reshape(blocks.shape[:2])
        blocks[:, :, offset : offset + 4] = single[..., None].view(np.uint8)


@pytest.mark.parametrize("isa", SETS)
@sweep(pytest.mark.parametrize("type", QUANTISED))
def test_random_bytes(rng: np.random.Generator, isa: str, type: str) -> None:
    weights = block(type)[0]
    rows, blocks = 24, 20 if weights == 32 else 5
    data = random_blocks(rng, type, rows, blocks * weights)
    matrix = kernels.Matrix(data.reshape(-1), TYPES[type], rows, blocks * weights)
    assert_same_floats(dequantize(isa, matrix, (rows, blocks * weights)), decode(type, data))


@pytest.mark.parametrize("isa", SETS)
@sweep(pytest.mark.parametrize("type", QUANTISED))
def test_every_code_in_every_place(rng: np.random.Generator, isa: str, type: str) -> None:
    """Blocks of scale 1 in which every byte takes every value, so that every code occurs at every place."""
    weights, size = block(type)
    data = rng.permuted(np.tile(np.arange(256, dtype=np.uint8)[:, None], (4, size)), axis=0)
    one, three = (np.full(1024, np.float16(value).view(np.uint16)) for value in (1, -3))
    set_halves(data, type, [one, three])
    if type in POWERS:
        data[:, POWERS[type]] = 128
    matrix = kernels.Matrix(data.reshape(-1), TYPES[type], 1024, weights)
    ours = dequantize(isa, matrix, (1024, weights))
    assert_same_floats(ours, decode(type, data))
    if weights == 32:
        levels = {"Q4": 16, "Q5": 32, "Q8": 256, "IQ": 16, "MX": 15, "AF": 256, "TE": 4}[
            type[:2]
        ]  # MXFP4 has two zeros
        assert all(len(set(column)) == levels for column in ours.T)


@pytest.mark.parametrize("isa", SETS)
@sweep(pytest.mark.parametrize("type", QUANTISED))
def test_edge_scales(rng: np.random.Generator, isa: str, type: str) -> None:
    """Subnormal, negative, zero and huge scales, in all pairs with minima of the same kinds."""
    weights, _ = block(type)
    first, second = (grid.reshape(-1).astype(np.uint16) for grid in np.meshgrid(SCALES, SCALES))
    data = random_blocks(rng, type, len(first), weights)
    set_halves(data, type, [first, second])
    matrix = kernels.Matrix(data.reshape(-1), TYPES[type], len(first), weights)
    assert_same_floats(dequantize(isa, matrix, (len(first), weights)), decode(type, data))


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("type", POWERS)
def test_every_power_of_two(isa: str, type: str) -> None:
    """All 256 scales times all codes in all places: subnormal ones, and those that overflow."""
    weights, size = block(type)
    data = np.empty((256, 16, size), np.uint8)
    data[:] = np.arange(16, dtype=np.uint8)[:, None] * 17  # both nibbles of a byte
    data[:, :, POWERS[type]] = np.arange(256, dtype=np.uint8)[:, None]
    data = data.reshape(256, -1)
    matrix = kernels.Matrix(data.reshape(-1), TYPES[type], 256, 16 * weights)
    with np.errstate(over="ignore"):
        expected = decode(type, data)
    assert np.isinf(expected[255]).any()
    assert (np.abs(expected[0][expected[0] != 0]) < np.finfo(np.float32).tiny * 4).all()
    assert_same_floats(dequantize(isa, matrix, (256, 16 * weights)), expected)
    assert_same_floats(dequantize(isa, matrix, (256, 16 * weights), np.uint16), to_bf16(expected))


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("type", ["F16", "BF16"])
def test_every_half(isa: str, type: str) -> None:
    """All 65,536 bit patterns, infinities and NaN included."""
    bits = np.arange(65536, dtype=np.uint16)
    expected = bits.view(np.float16).astype(np.float32) if type == "F16" else (bits.astype(np.uint32) << 16).view("f4")
    matrix = kernels.Matrix(bits.view(np.uint8), TYPES[type], 256, 256)
    ours = dequantize(isa, matrix, (256, 256))
    assert_same_floats(ours, expected.reshape(256, 256))
    assert np.array_equal(np.signbit(ours[ours == 0]), np.signbit(expected.reshape(256, 256)[ours == 0]))


@pytest.mark.parametrize("isa", SETS)
@sweep(pytest.mark.parametrize("type", list(TYPES)))
def test_a_rectangle_of_a_matrix(rng: np.random.Generator, isa: str, type: str) -> None:
    """Slices, and slices of slices, from block to block; f32 and bf16 results."""
    weights, _ = block(type)
    unit = weights if weights > 1 else 17
    whole = stored(rng, type, 13, 5 * unit)
    w = whole.matrix
    cases: list[tuple[Any, Any]] = [
        (w.slice(rows=(2, 9)), np.s_[2:9]),
        (w.slice(cols=(unit, 4 * unit)), np.s_[:, unit : 4 * unit]),
        (w.slice(rows=(12, 13), cols=(4 * unit, 5 * unit)), np.s_[12:13, 4 * unit :]),
        (w.slice(rows=(1, 12), cols=(unit, 5 * unit)).slice(rows=(2, 5), cols=(unit, 3 * unit)),
         np.s_[3:6, 2 * unit : 4 * unit]),
    ]  # fmt: skip
    for matrix, where in cases:
        expected = whole.values[where].astype(np.float32)
        assert matrix.shape == expected.shape
        assert_same_floats(dequantize(isa, matrix, expected.shape), expected)
        assert_same_floats(dequantize(isa, matrix, expected.shape, np.uint16), to_bf16(expected))


@pytest.mark.parametrize("isa", SETS)
@sweep(pytest.mark.parametrize("type", list(TYPES)), pytest.mark.parametrize("dtype", [np.float32, np.uint16]))
def test_gather_rows(rng: np.random.Generator, isa: str, type: str, dtype: Any) -> None:
    table: Stored = stored(rng, type, 11, 3 * max(block(type)[0], 24))
    ids = np.array([10, 0, 3, 3, 7], np.int32)
    expected = table.values[ids].astype(np.float32)
    out = Guarded(expected.shape, dtype)
    kernel(isa, "gather_rows")(w=table.matrix, ids=ids, out=out.view)
    assert_same_floats(out.view, expected if dtype == np.float32 else to_bf16(expected))
    assert out.surroundings_intact()


@pytest.mark.parametrize(
    ("rows", "cols"),
    [((0, 5), None), ((-1, 2), None), ((2, 1), None), (None, (0, 160)), (None, (16, 64)), (None, (0, 40))],
)
def test_a_slice_outside_of_the_matrix_or_through_a_block_is_refused(
    rng: np.random.Generator, rows: Any, cols: Any
) -> None:
    with pytest.raises(ValueError, match=r"outside|cut a block"):
        stored(rng, "Q4_0", 4, 128).matrix.slice(rows=rows, cols=cols)


def test_bytes_that_do_not_fit_the_shape_are_refused(rng: np.random.Generator) -> None:
    data = random_blocks(rng, "Q4_0", 4, 64).reshape(-1)
    for cut, type, rows, cols in [(data[:-1], 2, 4, 64), (data, 2, 5, 64), (data, 2, 4, 63), (data, 99, 4, 64)]:
        with pytest.raises(ValueError, match=r"elements|blocks|unknown"):
            kernels.Matrix(cut, type, rows, cols)
