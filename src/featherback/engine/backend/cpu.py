"""The CPU as a device: NumPy arrays, the native kernels, and stored weights that products read in place."""

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
FEW, SEVERAL = 4, 16
"""Rows of x that a product multiplies without unpacking the weight first: exactly, and rounded to eight bits."""
PIECE = 1 << 15
"""Numbers that `largest` compares at a time."""


class CPUOperations:
    """The native kernels, and row operations for which NumPy is as fast as memory."""

    linear: Callable[..., None] = staticmethod(kernels.linear)
    linear_backward = staticmethod(kernels.linear_backward)
    lora_in = staticmethod(kernels.lora_in)
    lora_gradient = staticmethod(kernels.lora_gradient)
    lora_in_parts, lora_out_parts = staticmethod(kernels.lora_in_parts), staticmethod(kernels.lora_out_parts)
    dequantize = staticmethod(kernels.dequantize)
    rms_norm = staticmethod(kernels.rms_norm)
    rms_norm_backward = staticmethod(kernels.rms_norm_backward)
    layer_norm = staticmethod(kernels.layer_norm)
    layer_norm_backward = staticmethod(kernels.layer_norm_backward)
    rope = staticmethod(kernels.rope)
    attention = staticmethod(kernels.attention)
    attention_backward = staticmethod(kernels.attention_backward)
    cache_rows = staticmethod(kernels.cache_rows)
    cached_attention = staticmethod(kernels.cached_attention)
    hadamard = staticmethod(kernels.hadamard)
    delta_rule = staticmethod(kernels.delta_rule)
    delta_rule_backward = staticmethod(kernels.delta_rule_backward)
    gate, gate_backward = staticmethod(kernels.gate), staticmethod(kernels.gate_backward)
    glu = staticmethod(kernels.glu)
    glu_backward = staticmethod(kernels.glu_backward)
    slope_codes, slope_backward = staticmethod(kernels.slope_codes), staticmethod(kernels.slope_backward)
    gated_recurrence = staticmethod(kernels.gated_recurrence)
    gated_recurrence_backward = staticmethod(kernels.gated_recurrence_backward)
    round_rows = staticmethod(kernels.round_rows)
    cross_entropy_tile = staticmethod(kernels.cross_entropy_tile)
    cross_entropy_finish = staticmethod(kernels.cross_entropy_finish)
    encode = staticmethod(kernels.encode)
    decode = staticmethod(kernels.decode)
    cast = staticmethod(kernels.cast)
    scale_columns = staticmethod(kernels.scale_columns)
    column_dots = staticmethod(kernels.column_dots)
    row_dots = staticmethod(kernels.row_dots)
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
        x[...] = np.linalg.qr(x)[0]  # allocates its own memory, so that `room` stays untouched and costs nothing

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
    def take_rows(x: Array, rows: NDArray[np.integer[Any]], out: Array) -> None:
        kernels.take_rows(x, rows.astype(np.int32, copy=False), out)

    @staticmethod
    def put_rows(values: Array, rows: NDArray[np.intp], x: Array) -> None:
        x[rows] = values

    @staticmethod
    def scale_rows(x: Array, factors: Array) -> None:
        x *= factors[:, None]

    @staticmethod
    def add_rows(values: Array, rows: NDArray[np.int32], out: Array, *, factors: Array | None = None) -> None:
        if factors is None:
            kernels.add_rows(values, rows, out)
            return
        for t in np.flatnonzero((rows >= 0) & (rows < len(out))):
            out[rows[t]] += factors[t] * values[t]

    @staticmethod
    def transpose(x: Array, out: Array) -> None:
        np.copyto(out, x.T)

    @staticmethod
    def softmax_shares(
        reference: Array, sum: Array, target_logit: Array, scale: float, shares: Array, pulls: Array, *,
        softcap: float = 0.0,
    ) -> None:  # fmt: skip
        gap = target_logit.astype(np.float64) - reference
        below = np.exp(-np.maximum(gap, 0))  # relative to the larger of the reference's and the target's exponential
        shares[...] = scale * below / (sum * below + np.exp(np.minimum(gap, 0)))
        pulls[...] = -sum if not softcap else -sum * (1 - np.square(target_logit / softcap))

    @staticmethod
    def sinks_gradient(sinks: Array, lse: Array, delta: Array, out: Array) -> None:
        for head, sink in enumerate(sinks):
            out[head] = -np.exp(sink - lse[head]) @ delta[head]

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
    def clear(x: Array, rows: NDArray[np.intp], columns: NDArray[np.int32]) -> None:
        (found,) = np.nonzero((columns >= 0) & (columns < x.shape[1]))
        x[rows[found], columns[found]] = 0

    @staticmethod
    def largest(x: Array, first: int, values: Array, columns: Array) -> None:
        # Only what exceeds the smallest value so far is compared, in pieces, because NumPy makes copies.
        count = max(1, PIECE // (x.shape[1] + values.shape[1]))
        for start in range(0, len(x), count):
            part = slice(start, start + count)
            _keep_largest(x[part], first, values[part], columns[part])

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
        # The angle is a float32 product, as it was when the models were trained.
        np.multiply(positions.astype(np.float32)[:, None], inverse_frequencies[None], out=cos)
        np.sin(cos, out=sin)
        np.cos(cos, out=cos)

    @staticmethod
    def dense(matrix: Array) -> kernels.Matrix:
        kind = TensorType.F32 if matrix.dtype == np.float32 else TensorType.BF16
        return kernels.Matrix(matrix.reshape(-1).view(np.uint8), int(kind), *matrix.shape)


def _keep_largest(x: Array, first: int, values: Array, columns: Array) -> None:
    """Do the work of `largest` for some rows."""
    n, k = values.shape
    rows, found = np.nonzero(x > values.min(axis=1, keepdims=True))
    if not rows.size:
        return
    counts = np.bincount(rows, minlength=n)
    places = k + np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    candidates = np.full((n, k + int(counts.max())), -np.inf, np.float32)
    ids = np.zeros(candidates.shape, np.int32)
    candidates[:, :k], ids[:, :k] = values, columns
    candidates[rows, places], ids[rows, places] = x[rows, found], first + found
    kept = np.argpartition(candidates, -k, axis=1)[:, -k:]
    values[:], columns[:] = np.take_along_axis(candidates, kept, 1), np.take_along_axis(ids, kept, 1)


class FixedPointOperations(CPUOperations):
    """Operations whose products with weights use fixed-point arithmetic."""

    linear = staticmethod(partial(kernels.linear, fixed=True))
    linear_backward = staticmethod(partial(kernels.linear_backward, fixed=True))


def _in_parts(most: int, x: Array, w: kernels.Matrix, out: Array, *, h: Array | None = None, **more: Any) -> None:
    """Multiply at most so many rows of x at a time. The weight is in the cache from the second time on."""
    if len(x) <= most:
        kernels.linear(x, w, out, h=h, **more)
        return
    for first in range(0, len(x), most):
        rows = slice(first, first + most)
        kernels.linear(x[rows], w, out[rows], h=None if h is None else h[rows], **more)


class DecodingOperations(CPUOperations):
    """Operations for next tokens: a row has the same bits whatever the number of rows.

    Products of a few rows are the same in fp32 and in fixed point.
    """

    linear = staticmethod(partial(_in_parts, FEW))


class RoundedOperations(CPUOperations):
    """The same, and products round their rows to eight bits if the weight's levels are bytes."""

    @staticmethod
    def linear(x: Array, w: kernels.Matrix, out: Array, **more: Any) -> None:
        if kernels.rounds(w.type, 1):
            _in_parts(SEVERAL, x, w, out, rounded=True, **more)
        else:
            _in_parts(FEW, x, w, out, **more)


def _for_prompts(exact: type[CPUOperations]) -> CPUOperations:
    """Return operations for prompts: a row has the same bits whatever the number of rows.

    A prompt has more than `FEW` rows, but an expert may get fewer of them. These are multiplied beside rows of zeros.
    """

    class PromptOperations(exact):  # type: ignore[valid-type, misc]
        @staticmethod
        def linear(x: Array, w: kernels.Matrix, out: Array, *, h: Array | None = None, **more: Any) -> None:
            if not 0 < len(x) <= FEW:
                exact.linear(x, w, out, h=h, **more)
                return
            whole = _beside_zeros(out)
            exact.linear(_beside_zeros(x), w, whole, h=None if h is None else _beside_zeros(h), **more)
            out[...] = whole[: len(out)]

    return PromptOperations()


def _beside_zeros(x: Array) -> Array:
    padded = np.zeros((FEW + 1, x.shape[1]), x.dtype)
    padded[: len(x)] = x
    return padded


class CPU:
    """This machine's processor."""

    def __init__(self, compute: str, rounded: bool = False, decoding: bool = False) -> None:
        exact = FixedPointOperations if compute == "int16" else CPUOperations
        self.prompts = _for_prompts(exact) if decoding else exact()
        self.ops = RoundedOperations() if rounded else DecodingOperations() if decoding else exact()
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
    def weights(model: Any, mode: str, rows: int, changing: bool) -> None:
        return None

    @staticmethod
    def arena(nbytes: int) -> Arena:
        return Arena(nbytes)

    @staticmethod
    def matrix(stored: StoredMatrix) -> kernels.Matrix:
        return kernels.matrix(stored)

    @staticmethod
    def each(tiles: Sequence[T]) -> Sequence[T]:
        return tiles

    @staticmethod
    def most(found: Callable[[], T], bound: T) -> T:
        return found()
