"""The CPU: NumPy arrays, the native kernels, stored weights multiplied as they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from featherback.core.noise import add_normal, kept, quantiles, row_states
from featherback.engine import kernels
from featherback.engine.backend import levels
from featherback.engine.backend.arena import Arena
from featherback.engine.formats.matrix import Matrix as StoredMatrix
from featherback.engine.formats.types import TensorType

Array = NDArray[Any]
T = TypeVar("T")


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
    encode = staticmethod(kernels.encode)
    decode = staticmethod(kernels.decode)
    cast = staticmethod(kernels.cast)
    scale_columns = staticmethod(kernels.scale_columns)
    column_dots = staticmethod(kernels.column_dots)
    add_normal = staticmethod(add_normal)
    add, subtract = staticmethod(np.add), staticmethod(np.subtract)
    multiply, divide = staticmethod(np.multiply), staticmethod(np.divide)
    sqrt, sign = staticmethod(np.sqrt), staticmethod(np.sign)
    clip, matmul = staticmethod(np.clip), staticmethod(np.matmul)
    pack, unpack = staticmethod(levels.pack), staticmethod(levels.unpack)
    sgd, adamw = staticmethod(kernels.sgd), staticmethod(kernels.adamw)

    @staticmethod
    def dot(x: Array, y: Array) -> float:
        return float(x @ y)

    @staticmethod
    def row_means(x: Array, out: Array) -> None:
        x.mean(axis=1, out=out)

    @staticmethod
    def column_sums(x: Array, out: Array) -> None:
        x.sum(axis=0, out=out)

    @staticmethod
    def row_squares(x: Array, out: Array) -> None:
        np.einsum("ij,ij->i", x, x, out=out)

    @staticmethod
    def column_squares(x: Array, out: Array) -> None:
        np.einsum("ij,ij->j", x, x, out=out)

    @staticmethod
    def negatives(x: Array) -> tuple[float, int]:
        below = x[x < 0]
        return float(below.sum(dtype=np.float64)), below.size

    @staticmethod
    def replace_negatives(x: Array, value: float) -> None:
        x[x < 0] = value

    @staticmethod
    def orthonormal(x: Array, room: Array) -> None:
        x[...] = np.linalg.qr(x)[0]  # it brings memory of its own: the room stays untouched, and so is none

    @staticmethod
    def fill(out: Array, value: float) -> None:
        out.fill(value)

    @staticmethod
    def scale(out: Array, factor: float) -> None:
        out *= np.float32(factor)

    @staticmethod
    def to_host(x: Array) -> NDArray[np.float64]:
        return x.astype(np.float64)

    @staticmethod
    def from_host(values: NDArray[np.float64], out: Array) -> None:
        out[...] = values

    @staticmethod
    def total(x: Array) -> float:
        return float(x.sum(dtype=np.float64))

    @staticmethod
    def sum_squares(x: Array) -> float:
        return float(kernels.sum_squares(x.reshape(-1)))

    @staticmethod
    def over_norm(m: Array, squares: Array, dots: Array, factor: float, out: Array) -> None:
        np.multiply(dots, np.float32(factor), out=out)
        out += squares
        np.sqrt(out, out=out)
        np.divide(m, out, out=out)

    @staticmethod
    def smallest(x: Array, count: int) -> float:
        np.abs(x, out=x)
        x.partition(count - 1)
        return float(x[count - 1])

    @staticmethod
    def mark_small(x: Array, limit: float) -> None:
        np.abs(x, out=x)
        np.less_equal(x, np.float32(limit), out=x, casting="unsafe")

    @staticmethod
    def take_rows(x: Array, rows: NDArray[np.intp], out: Array) -> None:
        np.take(x, rows, axis=0, out=out, mode="clip")  # "raise" would copy

    @staticmethod
    def put_rows(values: Array, rows: NDArray[np.intp], x: Array) -> None:
        x[rows] = values

    @staticmethod
    def scale_rows(x: Array, factors: Array) -> None:
        x *= factors[:, None]

    @staticmethod
    def add_rows(values: Array, rows: NDArray[np.int32], out: Array, *, factors: Array | None = None) -> None:
        for t in np.flatnonzero((rows >= 0) & (rows < len(out))):
            out[rows[t]] += values[t] if factors is None else factors[t] * values[t]

    @staticmethod
    def transpose(x: Array, out: Array) -> None:
        np.copyto(out, x.T)

    @staticmethod
    def softmax_shares(
        reference: Array, sum: Array, target_logit: Array, scale: float, shares: Array, pulls: Array, *,
        softcap: float = 0.0,
    ) -> None:  # fmt: skip
        gap = target_logit.astype(np.float64) - reference
        below = np.exp(-np.maximum(gap, 0))  # both over the larger of the reference's and the target's exponential
        shares[...] = scale * below / (sum * below + np.exp(np.minimum(gap, 0)))
        pulls[...] = -sum if not softcap else -sum * (1 - np.square(target_logit / softcap))

    @staticmethod
    def zero_rows(x: Array, rows: NDArray[np.intp]) -> None:
        x[rows] = 0

    @staticmethod
    def softcap(out: Array, cap: float) -> None:
        out /= np.float32(cap)
        np.tanh(out, out=out)
        out *= np.float32(cap)

    @staticmethod
    def capped_slopes(x: Array, cap: float) -> None:
        if not cap:
            x.fill(1)
            return
        x *= np.float32(1 / cap)
        np.square(x, out=x)
        np.subtract(np.float32(1), x, out=x)

    @staticmethod
    def pick(x: Array, rows: NDArray[np.intp], columns: NDArray[np.int32], out: Array) -> None:
        (found,) = np.nonzero((columns >= 0) & (columns < x.shape[1]))
        out[found] = x[rows[found], columns[found]]

    @staticmethod
    def add_row_sums(x: Array, out: Array) -> None:
        out += x.sum(axis=1)

    @staticmethod
    def add_normals(key: tuple[int, ...], corner: tuple[int, int], factor: float, out: Array) -> None:
        states = row_states(key, range(corner[0], corner[0] + len(out)))
        kernels.add_drawn(states, corner[1], quantiles(), factor, out)

    @staticmethod
    def round_at_random(x: Array, key: tuple[int, ...], first_row: int, out: Array) -> None:
        kernels.round_at_random(x, row_states(key, range(first_row, first_row + len(x))), out)

    @staticmethod
    def drop(
        x: Array, key: tuple[int, ...], rate: float, corner: tuple[int, int], out: Array, *,
        accumulate: bool = False,
    ) -> None:  # fmt: skip
        for rows, left in kept(key, rate, corner, x.shape):
            if accumulate:
                out[rows] += x[rows] * left
            else:
                np.multiply(x[rows], left, out=out[rows])

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


class FixedPointOperations(CPUOperations):
    """Products with weights in fixed point."""

    linear = staticmethod(partial(kernels.linear, fixed=True))
    linear_backward = staticmethod(partial(kernels.linear_backward, fixed=True))


class CPU:
    """This machine's processor."""

    def __init__(self, compute: str) -> None:
        self.ops = FixedPointOperations() if compute == "int16" else CPUOperations()
        self.operand = kernels.OPERANDS[compute]
        self.dense_type = kernels.OPERANDS["bf16" if compute == "bf16" and kernels.multiplies_bf16() else "fp32"]

    @staticmethod
    def host(x: Array, *, write: bool = False) -> AbstractContextManager[Array]:
        return nullcontext(x)

    @staticmethod
    def held(values: Array, *, changing: bool = False) -> AbstractContextManager[Array]:
        return nullcontext(values)

    @staticmethod
    def vector(values: Array) -> Array:
        return values

    @staticmethod
    def gather_rows(stored: StoredMatrix, ids: NDArray[np.int32], out: Array) -> None:
        kernels.gather_rows(kernels.matrix(stored), ids, out)

    @staticmethod
    def release(matrix: kernels.Matrix, around: int) -> None:
        matrix.release(around)

    @staticmethod
    def arena(nbytes: int) -> Arena:
        return Arena(nbytes)

    @staticmethod
    def matrix(stored: StoredMatrix) -> kernels.Matrix:
        return kernels.matrix(stored)

    @staticmethod
    def each(tiles: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        return tiles

    @staticmethod
    def most(found: Callable[[], T], bound: T) -> T:
        return found()
