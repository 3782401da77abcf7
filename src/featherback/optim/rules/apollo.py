"""APOLLO: scale gradients as Adam would scale a random sketch of them (Zhu et al., MLSys 2025, arXiv 2412.05270).

This is an independent implementation. It follows the authors' code: the limiter bounds the scaled gradient before the
bias correction, moments stay when the projection changes, and vectors and tables use Adam itself.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

from featherback.core.options import option
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.nn.slots import MATRIX
from featherback.optim.rule import Rule, StepArgs, Tensor, as_matrix, pieces
from featherback.optim.rules.adamw import AdamW

_PURPOSE = crc32(b"apollo")
TINY = 1e-8
"""Added to lengths before dividing by them."""
GROWTH = 1.01
"""The scaled gradient may be at most this many times as long as in the step before."""


@dataclass(frozen=True, kw_only=True)
class ScaledGradient(Rule):
    """For a matrix, with P (normal, variance 1 / rank) applied to its smaller dimension:
    S = g P^T;  m = beta1 m + (1 - beta1) S;  v = beta2 v + (1 - beta2) S^2;  N = m / (sqrt(v) + eps)
    G = g |N| / (|S| + 1e-8);  G is limited to 1.01 times its length in the step before
    p = p (1 - lr weight_decay) - lr sqrt(1 - beta2^step) / (1 - beta1^step) sqrt(apollo_scale) G
    """

    FOR_ADAPTERS: ClassVar[bool] = False  # adapters' matrices are already as small as sketches
    FULL_WIDTH_POWER: ClassVar[float] = AdamW.FULL_WIDTH_POWER

    beta1: float = option(0.9, least=0, below=1, help="Decay of the gradient's running mean.")
    beta2: float = option(0.999, least=0, below=1, help="Decay of the squared gradient's running mean.")
    eps: float = option(1e-6, above=0, help="Added to the root of the squared gradient's running mean.")
    weight_decay: float = option(0.0, least=0, help="Decoupled weight decay.")
    apollo_scale: float = option(1.0, above=0, help="Updates are multiplied by the square root of this scale.")
    update_gap: int = option(200, least=1, help="Steps between new random projections.")

    @abstractmethod
    def rank(self, shape: tuple[int, int]) -> int:
        """Return the rank of the sketch of a matrix."""

    @abstractmethod
    def factors(self, on: Device, normalised: Array, sketched: Array) -> None:
        """Overwrite `normalised` with |N| / |S|. Both arrays hold squares, summed per index of the larger dimension."""

    def state_sizes(self, shape: tuple[int, ...], role: str = MATRIX) -> dict[str, int]:
        if _plain(as_matrix(shape), role):
            return self._adam(1).state_sizes(shape, role)
        size = self.rank(as_matrix(shape)) * max(as_matrix(shape))
        return {"first_moment": size, "second_moment": size, "length": 1}

    def update(self, tensor: Tensor, turn: StepArgs) -> None:
        if _plain(tensor.shape, tensor.role):
            return self._adam(turn.step).update(tensor, turn)
        on, ops, larger = tensor.on, tensor.on.ops, max(tensor.shape)
        tall = tensor.shape[0] >= tensor.shape[1]
        with on.frame():
            factors, sketched, squares = (on.floats(name, larger) for name in ("|N|^2", "|S|^2", "|g|^2"))
            (self._read_rows if tall else self._read_columns)(tensor, turn, factors, sketched, squares)
            self.factors(on, factors, sketched)
            ops.multiply(factors, factors, sketched)
            length = turn.grad_scale * math.sqrt(ops.dot(sketched, squares))
            with tensor.state("length") as held:
                before = ops.total(held)
                limiter = max(1.0, length / (before + TINY) / GROWTH) if before > 0 else 1.0
                ops.fill(held, length / limiter)
            unbiased = math.sqrt(1 - self.beta2**turn.step) / (1 - self.beta1**turn.step)
            scale = turn.lr * unbiased * math.sqrt(self.apollo_scale) * turn.grad_scale / limiter
            ops.multiply(factors, scale, factors)
            for part, gradient in tensor.gradient():
                own = factors[part].reshape(len(gradient), 1) if tall else factors
                with tensor.values(part) as values:
                    ops.multiply(values, 1 - turn.lr * self.weight_decay, values)
                    for piece in pieces(on, gradient.shape):
                        with on.frame():
                            step = on.floats("step", *gradient[piece].shape)
                            ops.multiply(gradient[piece], own[piece] if tall else own, step)
                            ops.subtract(values[piece], step, values[piece])

    def _read_rows(self, tensor: Tensor, turn: StepArgs, normalised: Array, sketched: Array, squares: Array) -> None:
        """Compute the squares of N, of S and of the unscaled gradient, summed per row of a tall matrix."""
        on, ops, rank = tensor.on, tensor.on.ops, self.rank(tensor.shape)
        with on.frame():
            projection = self._projection(tensor, turn, (rank, tensor.shape[1]))
            for part, gradient in tensor.gradient():
                with on.frame():
                    sketch = on.floats("S, tile", len(gradient), rank)
                    ops.lora_in(gradient, projection, sketch, turn.grad_scale)
                    for piece, n in self._normalised(tensor, sketch, part.start):
                        ops.row_squares(n, normalised[part][piece])
                    ops.row_squares(sketch, sketched[part])
                    ops.row_squares(gradient, squares[part])

    def _read_columns(self, tensor: Tensor, turn: StepArgs, normalised: Array, sketched: Array, squares: Array) -> None:
        """Compute the same per column of a wide matrix. Its sketch is complete only after all rows have been read."""
        on, ops, (rows, cols) = tensor.on, tensor.on.ops, tensor.shape
        rank = self.rank(tensor.shape)
        with on.frame():
            sketch, sums = on.floats("S", rank, cols), on.floats("squares of columns", cols)
            for array in (sketch, normalised, squares):
                ops.fill(array, 0)
            projection = self._projection(tensor, turn, (rows, rank))
            for part, gradient in tensor.gradient():
                ops.lora_gradient(projection[part], gradient, sketch, turn.grad_scale, accumulate=True)
                ops.column_squares(gradient, sums)
                ops.add(squares, sums, squares)
            for _, n in self._normalised(tensor, sketch, 0):
                ops.column_squares(n, sums)
                ops.add(normalised, sums, normalised)
            ops.column_squares(sketch, sketched)

    def _projection(self, tensor: Tensor, turn: StepArgs, shape: tuple[int, int]) -> Array:
        key = (_PURPOSE, turn.seed, (turn.step - 1) // self.update_gap, *tensor.key)
        drawn = tensor.on.floats("P", math.prod(shape))
        tensor.on.ops.fill(drawn, 0)
        tensor.on.ops.add_normal(key, self.rank(tensor.shape) ** -0.5, drawn)
        return drawn.reshape(*shape)

    def _normalised(self, tensor: Tensor, sketch: Array, first: int) -> Iterator[tuple[slice, Array]]:
        """Yield N, some rows at a time, and update the moments. `first`: the moments' row for the sketch's row 0."""
        on, ops, cols = tensor.on, tensor.on.ops, sketch.shape[1]
        for piece in pieces(on, sketch.shape):
            s = sketch[piece]
            part = ((first + piece.start) * cols, len(s) * cols)
            with on.frame():
                n = on.floats("N", *s.shape)
                with tensor.state("first_moment", *part) as one, tensor.state("second_moment", *part) as two:
                    m, v = one.reshape(*s.shape), two.reshape(*s.shape)
                    ops.multiply(m, self.beta1, m)
                    ops.multiply(s, 1 - self.beta1, n)
                    ops.add(m, n, m)
                    ops.multiply(s, s, n)
                    ops.multiply(n, 1 - self.beta2, n)
                    ops.multiply(v, self.beta2, v)
                    ops.add(v, n, v)
                    ops.sqrt(v, n)
                    ops.add(n, self.eps, n)
                    ops.divide(m, n, n)
                yield piece, n

    def _adam(self, step: int) -> AdamW:
        """Return AdamW with eps added before the bias correction, as in the authors' code."""
        eps = self.eps / math.sqrt(1 - self.beta2**step)
        return AdamW(beta1=self.beta1, beta2=self.beta2, eps=eps, weight_decay=self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class Apollo(ScaledGradient):
    __doc__ = f"{ScaledGradient.__doc__}\n    |N| and |S| are computed per index of the larger dimension."

    # With the sketch, steps are sqrt(rank / smaller dimension) times as large as AdamW's. The paper's rate of 0.01 is
    # for pretraining.
    FULL_LEARNING_RATE: ClassVar[float] = 2 * AdamW.FULL_LEARNING_RATE

    apollo_rank: int = option(
        0, least=0, help="Rank of the gradients' sketches; 0 = a quarter of a matrix's smaller dimension."
    )

    def rank(self, shape: tuple[int, int]) -> int:
        smaller = min(shape)
        return min(self.apollo_rank or max(1, smaller // 4), smaller)

    def factors(self, on: Device, normalised: Array, sketched: Array) -> None:
        on.ops.sqrt(sketched, sketched)
        on.ops.add(sketched, TINY, sketched)
        on.ops.sqrt(normalised, normalised)
        on.ops.divide(normalised, sketched, normalised)


def _plain(shape: tuple[int, int], role: str) -> bool:
    """Whether this tensor uses Adam itself."""
    return shape[0] == 1 or role != MATRIX


RULE = Apollo
