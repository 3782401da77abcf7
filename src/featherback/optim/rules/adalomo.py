"""AdaLomo: factored second moments, and steps relative to a weight's size (Lv et al., 2024, arXiv 2310.10195)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from featherback.core.options import option
from featherback.engine.backend.protocol import Array
from featherback.nn.slots import MATRIX
from featherback.optim.rule import Rule, StepArgs, Tensor, as_matrix, pieces

POWER = 0.8
EPS = 1e-30
"""Added to squared gradients."""
LEAST_SIZE = 1e-3
"""Tensors with a smaller rms are updated as if they had this one."""


@dataclass(frozen=True, kw_only=True)
class AdaLomo(Rule):
    """b = 1 - step^-0.8;  R = b R + (1 - b) mean of g^2 over columns;  C = b C + (1 - b) mean of g^2 over rows
    U = g / sqrt(R C / mean(R));  U /= max(1, rms(U))
    s = lr max(1e-3, rms(p));  p = p (1 - s weight_decay) - s U

    lr is relative: the share of a tensor's size that a step changes. A vector is one row; R C / mean(R) is then C.

    The gradient is read twice. The first reading also gives rms(U): the mean of U^2 is mean(R) sum_j w_j / C_j divided
    by the number of values, with w_j = sum_i g_ij^2 / R_i. A row's R is known once that row has been read.
    """

    FULL_LEARNING_RATE: ClassVar[float] = 5e-4
    FOR_ADAPTERS: ClassVar[bool] = False  # an adapter's B starts as zeros, so it has no size to be relative to

    weight_decay: float = option(0.0, least=0, help="Decoupled weight decay.")

    def state_sizes(self, shape: tuple[int, ...], role: str = MATRIX) -> dict[str, int]:
        rows, cols = as_matrix(shape)
        return {"rows": rows, "columns": cols}  # R, C

    def update(self, tensor: Tensor, turn: StepArgs) -> None:
        with tensor.on.frame():
            by_column = tensor.on.floats("1 / sqrt(C)", tensor.shape[1])
            mean, rate, decay = self._read(tensor, turn, by_column)
            self._step(tensor, mean, rate, decay, by_column)

    def _read(self, tensor: Tensor, turn: StepArgs, by_column: Array) -> tuple[float, float, float]:
        """Read the gradient once and update R and C. Return mean(R), the factor on U before clipping, and the decay."""
        on, ops, (rows, cols) = tensor.on, tensor.on.ops, tensor.shape
        fresh = turn.step**-POWER
        squares = row_sum = 0.0
        with on.frame():
            # Column sums of g^2 and of g^2 / R, in double.
            sums, weighted = (on.scratch.take(name, (cols,), np.float64) for name in ("sums", "weighted sums"))
            ops.fill(sums, 0)
            ops.fill(weighted, 0)
            for part, gradient in tensor.gradient():
                with tensor.read(part) as values:
                    squares += ops.sum_squares(values)
                with tensor.state("rows", part.start, len(gradient)) as row_means:
                    ops.multiply(row_means, 1 - fresh, row_means)
                    for piece in pieces(on, gradient.shape):
                        with on.frame():
                            g2, own = on.floats("squares", *gradient[piece].shape), row_means[piece]
                            by_row, by_col = on.floats("of rows", len(own)), on.floats("of columns", cols)
                            ops.multiply(gradient[piece], turn.grad_scale, g2)
                            ops.multiply(g2, g2, g2)
                            ops.row_means(g2, by_row)
                            ops.add(by_row, EPS, by_row)
                            ops.multiply(by_row, fresh, by_row)
                            ops.add(own, by_row, own)
                            ops.column_sums(g2, by_col)
                            ops.add(sums, by_col, sums)
                            ops.divide(1, own, by_row)
                            ops.matmul(by_row, g2, by_col)
                            ops.add(weighted, by_col, weighted)
                    row_sum += ops.total(row_means)
            with tensor.state("columns") as column_means:
                ops.multiply(column_means, 1 - fresh, column_means)
                ops.divide(sums, rows, sums)
                ops.add(sums, EPS, sums)
                ops.multiply(sums, fresh, sums)
                ops.add(column_means, sums, column_means)
                ops.sqrt(column_means, by_column)
                ops.divide(1, by_column, by_column)
                ops.divide(weighted, column_means, weighted)
            mean = row_sum / rows
            rms = math.sqrt(mean * ops.total(weighted) / (rows * cols))
        rate, decay = self.rates(turn, max(LEAST_SIZE, math.sqrt(squares / (rows * cols))))
        return mean, rate * (turn.grad_scale / max(1.0, rms)), decay

    def _step(self, tensor: Tensor, mean: float, rate: float, decay: float, by_column: Array) -> None:
        on, ops = tensor.on, tensor.on.ops
        for part, gradient in tensor.gradient():
            with on.frame():
                by_row = on.floats("rate / sqrt(R / mean(R))", len(gradient))
                with tensor.state("rows", part.start, len(gradient)) as row_means:
                    ops.divide(mean, row_means, by_row)
                ops.sqrt(by_row, by_row)
                ops.multiply(by_row, rate, by_row)
                with tensor.values(part) as values:
                    ops.multiply(values, 1 - decay, values)
                    for piece in pieces(on, gradient.shape):
                        with on.frame():
                            step, own = on.floats("step", *gradient[piece].shape), by_row[piece]
                            ops.multiply(gradient[piece], own.reshape(len(own), 1), step)
                            ops.multiply(step, by_column, step)
                            ops.subtract(values[piece], step, values[piece])

    def rates(self, turn: StepArgs, size: float) -> tuple[float, float]:
        """Return the factors on U and on the values (the decay), for a tensor with rms `size`."""
        return turn.lr * size, turn.lr * size * self.weight_decay


RULE = AdaLomo
