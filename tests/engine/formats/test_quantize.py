import gguf.quants
import numpy as np
import pytest
from tests.engine.kernels.native import decode

from benchmarks.random_blocks import random_blocks
from featherback.engine.formats.quantize import quantize
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError

QUANTIZED = [TensorType[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")]


def theirs(kind: TensorType) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[kind.name]


@pytest.mark.parametrize("kind", QUANTIZED)
def test_same_bytes_as_the_gguf_package(kind: TensorType) -> None:
    weights = np.random.default_rng(1).standard_normal((37, 96)).astype(np.float32)
    weights[0] = 0  # a scale of zero
    weights[1, :32] = np.arange(-16, 16)  # ties
    weights[2] = 0.5  # a constant row
    weights[3] *= 1e-6
    expected = gguf.quants.quantize(weights, theirs(kind))
    assert np.array_equal(quantize(weights, kind), np.ascontiguousarray(expected).reshape(-1).view(np.uint8))


def test_bf16_rounds_to_even_and_keeps_nan() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800001, 0x7F800000, 0xFF7FFFFF], np.uint32)
    stored = quantize(bits.view(np.float32), TensorType.BF16).view(np.uint16)
    assert stored[[0, 1, 2, 4, 5]].tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80]
    assert np.isnan((stored[3:4].astype(np.uint32) << 16).view(np.float32))


def test_rows_must_fill_blocks() -> None:
    with pytest.raises(FeatherbackError, match="row of 16"):
        quantize(np.zeros((2, 16)), TensorType.Q4_0)


def test_formats_that_need_a_search_are_not_offered() -> None:
    with pytest.raises(ValueError, match="no quantiser for Q6_K"):
        quantize(np.zeros(256), TensorType.Q6_K)


@pytest.mark.parametrize("kind", TensorType)
def test_random_blocks_have_the_asked_spread(kind: TensorType) -> None:
    count = 60_000 // kind.block_size * 4
    data = random_blocks(np.random.default_rng(2), kind, count, std=0.02)
    assert data.size == count * kind.block_bytes
    stored = data.view({"F32": "<f4", "F16": "<f2"}.get(kind.name, "u1")).reshape(1, -1)
    values = decode(kind.name, stored)
    assert values.size == count * kind.block_size
    assert np.isfinite(values).all()
    assert abs(values.mean()) < 0.001
    assert 0.018 < values.std() < 0.022
