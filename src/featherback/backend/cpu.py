"""The CPU: NumPy arrays, the native kernels, stored weights multiplied as they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.backend.arena import Arena
from featherback.noise import add_normal
from featherback.weights.matrix import Matrix as StoredMatrix
from featherback.weights.types import TensorType

Array = NDArray[Any]


class CPUOperations:
    """The native kernels as they are, and row operations that NumPy does at the memory's own speed."""

    linear = staticmethod(kernels.linear)
    linear_backward = staticmethod(kernels.linear_backward)
    lora_in = staticmethod(kernels.lora_in)
    lora_gradient = staticmethod(kernels.lora_gradient)
    dequantize = staticmethod(kernels.dequantize)
    rms_norm = staticmethod(kernels.rms_norm)
    rms_norm_backward = staticmethod(kernels.rms_norm_backward)
    rope = staticmethod(kernels.rope)
    attention = staticmethod(kernels.attention)
    attention_backward = staticmethod(kernels.attention_backward)
    glu = staticmethod(kernels.glu)
    glu_backward = staticmethod(kernels.glu_backward)
    cross_entropy_tile = staticmethod(kernels.cross_entropy_tile)
    cross_entropy_finish = staticmethod(kernels.cross_entropy_finish)
    cast = staticmethod(kernels.cast)
    add_normal = staticmethod(add_normal)

    @staticmethod
    def fill(out: Array, value: float) -> None:
        out.fill(value)

    @staticmethod
    def scale(out: Array, factor: float) -> None:
        out *= np.float32(factor)

    @staticmethod
    def total(x: Array) -> float:
        return float(x.sum(dtype=np.float64))

    @staticmethod
    def take_rows(x: Array, rows: NDArray[np.intp], out: Array) -> None:
        np.take(x, rows, axis=0, out=out, mode="clip")  # "raise" would copy

    @staticmethod
    def put_rows(values: Array, rows: NDArray[np.intp], x: Array) -> None:
        x[rows] = values

    @staticmethod
    def zero_rows(x: Array, rows: NDArray[np.intp]) -> None:
        x[rows] = 0

    @staticmethod
    def softcap(out: Array, cap: float) -> None:
        out /= np.float32(cap)
        np.tanh(out, out=out)
        out *= np.float32(cap)

    @staticmethod
    def rotary_table(
        inverse_frequencies: NDArray[np.float32], positions: NDArray[np.int32], cos: Array, sin: Array
    ) -> None:
        # The angle is a float32 product, as when the models were trained.
        np.multiply(positions.astype(np.float32)[:, None], inverse_frequencies[None], out=cos)
        np.sin(cos, out=sin)
        np.cos(cos, out=cos)

    @staticmethod
    def dense(matrix: Array) -> kernels.Matrix:
        kind = TensorType.F32 if matrix.dtype == np.float32 else TensorType.BF16
        return kernels.Matrix(matrix.reshape(-1).view(np.uint8), int(kind), *matrix.shape)


class CPU:
    """This machine's processor."""

    def __init__(self) -> None:
        self.ops = CPUOperations()

    @staticmethod
    def arena(nbytes: int) -> Arena:
        return Arena(nbytes)

    @staticmethod
    def matrix(stored: StoredMatrix) -> kernels.Matrix:
        return kernels.matrix(stored)

    @staticmethod
    def operand(compute: str) -> np.dtype[Any]:
        return kernels.OPERANDS[compute]

    @staticmethod
    def dense_type(compute: str) -> np.dtype[Any]:
        bf16 = compute == "bf16" and kernels.multiplies_bf16()
        return kernels.OPERANDS["bf16" if bf16 else "fp32"]
