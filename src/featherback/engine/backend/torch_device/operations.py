"""The operations of the device, by name. `engine.backend.protocol` documents them.

An operation that is not here is one that the device does not have. Plans refuse what needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from featherback.engine.backend.torch_device import attention, head, products, rows, steps, units, unpacking
from featherback.engine.backend.torch_device.arrays import Array, Limits, fused, on_tensors, wide
from featherback.engine.backend.torch_device.weights import Dense


def _fused(name: str) -> Any:
    """Run an operation of `units`, or on a GPU the kernel of that name in `fused_units`."""
    plain = getattr(units, name)

    def run(x: Tensor, *arguments: Any, **options: Any) -> None:
        has_kernel = units.CLIPPED not in [each for each in arguments if isinstance(each, str)]
        operation = getattr(fused("units"), name) if x.is_cuda and has_kernel else plain
        operation(x, *arguments, **options)

    return on_tensors(run)


def _into(function: Callable[..., Tensor]) -> Any:
    """Return an operation that writes what `function` returns for all its arguments but the last."""

    def run(*arguments: Any) -> None:
        arguments[-1].copy_(function(*arguments[:-1]))

    return on_tensors(run)


def _of(module: Any, *names: str) -> Any:
    """Return functions of a module as operations on arrays."""
    return (on_tensors(getattr(module, name)) for name in names)


class Operations:
    """What dense models, adapters, their optimisers and the objectives need."""

    linear, linear_backward, dequantize = _of(products, "linear", "linear_backward", "dequantize")
    lora_in, lora_gradient = _of(products, "lora_in", "lora_gradient")
    lora_in_parts, lora_out_parts = _of(products, "lora_in_parts", "lora_out_parts")
    rms_norm, rms_norm_backward, rope = map(_fused, ("rms_norm", "rms_norm_backward", "rope"))
    glu, glu_backward = _fused("glu"), _fused("glu_backward")
    layer_norm, layer_norm_backward = _of(units, "layer_norm", "layer_norm_backward")
    rotary_table, round_rows, hadamard = _of(units, "rotary_table", "round_rows", "hadamard")
    cache_rows, sinks_gradient = _of(attention, "cache_rows", "sinks_gradient")
    cross_entropy_tile, cross_entropy_finish = _of(head, "cross_entropy_tile", "cross_entropy_finish")
    softmax_shares, softcap, capped_slopes = _of(head, "softmax_shares", "softcap", "capped_slopes")
    pick, clear, largest = _of(head, "pick", "clear", "largest")
    take_rows, put_rows, zero_rows = _of(rows, "take_rows", "put_rows", "zero_rows")
    add_rows, scale_rows, row_dots = _of(rows, "add_rows", "scale_rows", "row_dots")
    scale_columns, column_dots, add_row_sums = _of(rows, "scale_columns", "column_dots", "add_row_sums")
    gate, gate_backward = _of(rows, "gate", "gate_backward")
    adamw, sgd, over_norm = _of(steps, "adamw", "sgd", "over_norm")
    smallest, mark_small, negatives = _of(steps, "smallest", "mark_small", "negatives")
    replace_negatives, orthonormal = _of(steps, "replace_negatives", "orthonormal")
    add_normal, add_normals, drop, pack, unpack = _of(steps, "add_normal", "add_normals", "drop", "pack", "unpack")
    encode, decode = _of(unpacking, "encode", "decode")
    cast, sqrt, sign = _into(lambda x: x), _into(torch.sqrt), _into(torch.sign)
    add, subtract = _into(lambda x, y: x + y), _into(lambda x, y: x - y)
    multiply, divide = _into(lambda x, y: x * y), _into(lambda x, y: x / y)
    clip, matmul, transpose = _into(torch.clamp), _into(torch.matmul), _into(torch.t)
    row_means, column_sums = _into(lambda x: x.mean(1)), _into(lambda x: x.sum(0))
    row_squares, column_squares = _into(lambda x: x.square().sum(1)), _into(lambda x: x.square().sum(0))
    fill, scale = on_tensors(lambda out, value: out.fill_(value)), on_tensors(lambda out, factor: out.mul_(factor))
    total, sum_squares = on_tensors(lambda x: float(wide(x).sum())), on_tensors(lambda x: float(wide(x).square().sum()))
    dot = on_tensors(lambda x, y: float(x @ y))

    def __init__(self, limits: Limits) -> None:
        self.attention, self.attention_backward, self.cached_attention = (
            partial(each, most=limits.scores)
            for each in _of(attention, "attention", "attention_backward", "cached_attention")
        )

    @staticmethod
    def dense(matrix: Array) -> Dense:
        """Return a contiguous array (rows, cols), float32 or bf16, as a weight."""
        return Dense(matrix.tensor)
