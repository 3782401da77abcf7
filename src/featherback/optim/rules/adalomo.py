"""AdaLomo: factored second moments and steps as large as the weights ask for (Lv et al., 2024, arXiv 2310.10195)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from featherback import kernels
from featherback.optim.rule import Rule, Tensor, Turn, as_matrix, pieces
from featherback.options import option
from featherback.parameters.roles import MATRIX

POWER = 0.8
EPS = 1e-30
"""Added to squared gradients."""
LEAST_SIZE = 1e-3
"""Tensors that are smaller learn as if they were of this size."""


@dataclass(frozen=True, kw_only=True)
class AdaLomo(Rule):
    """b = 1 - step^-0.8;  R = b R + (1 - b) mean of g^2 over columns;  C = b C + (1 - b) mean of g^2 over rows
    U = g / sqrt(R C / mean(R));  U /= max(1, rms(U))
    s = lr max(1e-3, rms(p));  p = p (1 - s weight_decay) - s U

    lr is relative: the share of a tensor's size that a step changes. A vector is one row, and R C / mean(R) is C then.

    Two readings of the gradient do, the first also for rms(U): its square is mean(R) sum_j w_j / C_j over the number of
    values, with w_j = sum_i g_ij^2 / R_i, and a row's R is known once that row has been read.
    """

    FULL_LEARNING_RATE: ClassVar[float] = 5e-4
    FOR_ADAPTERS: ClassVar[bool] = False  # one half of an adapter begins as zeros, which have no size
    READINGS: ClassVar[int] = 2
    TEMPORARIES: ClassVar[int] = 0

    weight_decay: float = option(0.0, least=0, help="Decoupled weight decay.")

    def state_sizes(self, shape: tuple[int, ...], role: str = MATRIX) -> dict[str, int]:
        rows, cols = as_matrix(shape)
        return {"rows": rows, "columns": cols}  # R, C

    def workspace(self, shape: tuple[int, ...], role: str = MATRIX) -> int:
        return 8 * as_matrix(shape)[1]

    def update(self, tensor: Tensor, turn: Turn) -> None:
        rows, cols = tensor.shape
        fresh = turn.step**-POWER
        sums, weighted = np.zeros(cols), np.zeros(cols)  # of g^2, of g^2 / R: in double
        squares = row_sum = 0.0
        for part, gradient in tensor.gradient():
            with tensor.read(part) as values:
                squares += kernels.sum_squares(values)
            with tensor.state("rows", part.start, len(gradient)) as row_means:
                row_means *= 1 - fresh
                for piece in pieces(gradient.shape):
                    g2 = gradient[piece] * np.float32(turn.grad_scale)
                    g2 *= g2
                    row_means[piece] += fresh * (g2.mean(axis=1) + EPS)
                    sums += g2.sum(axis=0)
                    weighted += (1 / row_means[piece]) @ g2
                row_sum += float(row_means.sum(dtype=np.float64))
        with tensor.state("columns") as column_means:
            column_means *= 1 - fresh
            column_means += fresh * (sums / rows + EPS)
            by_column = 1 / np.sqrt(column_means)
            weighted /= column_means
        mean = row_sum / rows
        rms = math.sqrt(mean * float(weighted.sum()) / (rows * cols))
        rate, decay = self.rates(turn, max(LEAST_SIZE, math.sqrt(squares / (rows * cols))))
        rate *= turn.grad_scale / max(1.0, rms)
        for part, gradient in tensor.gradient():
            with tensor.state("rows", part.start, len(gradient)) as row_means:
                by_row = rate * np.sqrt(mean / row_means)
            with tensor.values(part) as values:
                values *= 1 - decay
                for piece in pieces(gradient.shape):
                    step = gradient[piece] * by_row[piece, None]
                    step *= by_column
                    values[piece] -= step

    def rates(self, turn: Turn, size: float) -> tuple[float, float]:
        """What U and the values are multiplied by, of a tensor of this size."""
        return turn.lr * size, turn.lr * size * self.weight_decay


RULE = AdaLomo
