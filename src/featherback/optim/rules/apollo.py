"""APOLLO: gradients scaled as Adam would scale a random sketch of them (Zhu et al., MLSys 2025, arXiv 2412.05270).

The code is this project's own. As in the authors', the limiter bounds the scaled gradient without Adam's correction of
bias, moments stay when the projection changes, and vectors and tables have Adam itself.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

import numpy as np

from featherback import kernels
from featherback.noise import normal
from featherback.optim.rule import Float32, Rule, Tensor, Turn, as_matrix, pieces, tile_rows
from featherback.optim.rules.adamw import AdamW
from featherback.options import option
from featherback.parameters.roles import MATRIX

_PURPOSE = crc32(b"apollo")
TINY = 1e-8
"""Added to what divides lengths."""
GROWTH = 1.01
"""A scaled gradient is at most so many times as long as that of the step before."""


@dataclass(frozen=True, kw_only=True)
class ScaledGradient(Rule):
    """For a matrix, with P, normal numbers of variance 1 / rank, on the side of its smaller dimension:
    S = g P^T;  m = beta1 m + (1 - beta1) S;  v = beta2 v + (1 - beta2) S^2;  N = m / (sqrt(v) + eps)
    G = g |N| / (|S| + 1e-8);  G is shortened to 1.01 times its length in the step before
    p = p (1 - lr weight_decay) - lr sqrt(1 - beta2^step) / (1 - beta1^step) sqrt(apollo_scale) G
    """

    FOR_ADAPTERS: ClassVar[bool] = False  # their matrices are sketches already
    FULL_WIDTH_POWER: ClassVar[float] = AdamW.FULL_WIDTH_POWER
    READINGS: ClassVar[int] = 2
    TEMPORARIES: ClassVar[int] = 0

    beta1: float = option(0.9, least=0, below=1, help="Decay of the gradient's running mean.")
    beta2: float = option(0.999, least=0, below=1, help="Decay of the squared gradient's running mean.")
    eps: float = option(1e-6, above=0, help="Added to the root of the squared gradient's mean.")
    weight_decay: float = option(0.0, least=0, help="Decoupled weight decay.")
    apollo_scale: float = option(1.0, above=0, help="Square of a factor of the scaled gradient.")
    update_gap: int = option(200, least=1, help="Steps after which a new projection is drawn.")

    @abstractmethod
    def rank(self, shape: tuple[int, int]) -> int:
        """Rows of the sketch of a matrix."""

    @abstractmethod
    def factors(self, normalised: Float32, sketched: Float32) -> Float32:
        """|N| / |S| from the squares of both, summed for each index of the larger dimension."""

    def state_sizes(self, shape: tuple[int, ...], role: str = MATRIX) -> dict[str, int]:
        if _plain(as_matrix(shape), role):
            return self._adam(1).state_sizes(shape, role)
        size = self.rank(as_matrix(shape)) * max(as_matrix(shape))
        return {"first_moment": size, "second_moment": size, "length": 1}

    def workspace(self, shape: tuple[int, ...], role: str = MATRIX) -> int:
        rows, cols = as_matrix(shape)
        if _plain((rows, cols), role):
            return 0
        sketched = tile_rows((rows, cols)) if rows >= cols else cols
        return self.rank((rows, cols)) * (min(rows, cols) + sketched) + 6 * max(rows, cols)

    def update(self, tensor: Tensor, turn: Turn) -> None:
        if _plain(tensor.shape, tensor.role):
            return self._adam(turn.step).update(tensor, turn)
        tall = tensor.shape[0] >= tensor.shape[1]
        lengths = self._read_rows(tensor, turn) if tall else self._read_columns(tensor, turn)
        factors = self.factors(*lengths[:2])
        length = turn.grad_scale * math.sqrt(float((factors * factors) @ lengths[2]))
        with tensor.state("length") as before:
            limiter = max(1.0, length / (float(before[0]) + TINY) / GROWTH) if before[0] > 0 else 1.0
            before[0] = length / limiter
        unbiased = math.sqrt(1 - self.beta2**turn.step) / (1 - self.beta1**turn.step)
        factors *= turn.lr * unbiased * math.sqrt(self.apollo_scale) * turn.grad_scale / limiter
        for part, gradient in tensor.gradient():
            own = factors[part, None] if tall else factors
            with tensor.values(part) as values:
                values *= 1 - turn.lr * self.weight_decay
                for piece in pieces(gradient.shape):
                    values[piece] -= gradient[piece] * (own[piece] if tall else own)

    def _read_rows(self, tensor: Tensor, turn: Turn) -> tuple[Float32, Float32, Float32]:
        """Squares of N, of S and of the gradient, not scaled, summed for each row of a tall matrix."""
        rows, cols = tensor.shape
        rank = self.rank(tensor.shape)
        projection = self._projection(tensor, turn, (rank, cols))
        normalised, sketched, squares = (np.empty(rows, np.float32) for _ in range(3))
        for part, gradient in tensor.gradient():
            sketch = np.empty((len(gradient), rank), np.float32)
            kernels.lora_in(gradient, projection, sketch, turn.grad_scale)
            for piece, n in self._normalised(tensor, sketch, part.start):
                normalised[part][piece] = _square_sums(n, "i")
            sketched[part] = _square_sums(sketch, "i")
            squares[part] = _square_sums(gradient, "i")
        return normalised, sketched, squares

    def _read_columns(self, tensor: Tensor, turn: Turn) -> tuple[Float32, Float32, Float32]:
        """The same for each column of a wide one, whose sketch is known when all rows have been read."""
        rows, cols = tensor.shape
        rank = self.rank(tensor.shape)
        projection = self._projection(tensor, turn, (rows, rank))
        sketch = np.zeros((rank, cols), np.float32)
        normalised, squares = (np.zeros(cols, np.float32) for _ in range(2))
        for part, gradient in tensor.gradient():
            kernels.lora_gradient(projection[part], gradient, sketch, turn.grad_scale, accumulate=True)
            squares += _square_sums(gradient, "j")
        for _, n in self._normalised(tensor, sketch, 0):
            normalised += _square_sums(n, "j")
        return normalised, _square_sums(sketch, "j"), squares

    def _projection(self, tensor: Tensor, turn: Turn, shape: tuple[int, int]) -> Float32:
        key = (_PURPOSE, turn.seed, (turn.step - 1) // self.update_gap, *tensor.key)
        drawn = normal(key, math.prod(shape)).reshape(shape)
        drawn *= np.float32(self.rank(tensor.shape) ** -0.5)
        return drawn

    def _normalised(self, tensor: Tensor, sketch: Float32, first: int) -> Iterator[tuple[slice, Float32]]:
        """N, some rows at a time, of a sketch whose moments lie from row `first` on; and these, brought up to date."""
        for piece in pieces(sketch.shape):
            s = sketch[piece]
            part = ((first + piece.start) * s.shape[1], s.size)
            with tensor.state("first_moment", *part) as one, tensor.state("second_moment", *part) as two:
                m, v = one.reshape(s.shape), two.reshape(s.shape)
                m *= self.beta1
                m += (1 - self.beta1) * s
                n = s * s
                n *= 1 - self.beta2
                v *= self.beta2
                v += n
                np.sqrt(v, out=n)
                n += self.eps
                np.divide(m, n, out=n)
            yield piece, n

    def _adam(self, step: int) -> AdamW:
        """Adam whose eps is added before the correction of bias, as the authors' is."""
        eps = self.eps / math.sqrt(1 - self.beta2**step)
        return AdamW(beta1=self.beta1, beta2=self.beta2, eps=eps, weight_decay=self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class Apollo(ScaledGradient):
    __doc__ = f"{ScaledGradient.__doc__}\n    |N| and |S| are lengths for each index of the larger dimension."

    # The sketch makes steps sqrt(rank / smaller dimension) as large as AdamW's; the paper's 0.01 is for pretraining.
    FULL_LEARNING_RATE: ClassVar[float] = 2 * AdamW.FULL_LEARNING_RATE

    apollo_rank: int = option(
        0, least=0, help="Rank of gradients' sketches; 0 = a quarter of a matrix' smaller dimension."
    )

    def rank(self, shape: tuple[int, int]) -> int:
        smaller = min(shape)
        return min(self.apollo_rank or max(1, smaller // 4), smaller)

    def factors(self, normalised: Float32, sketched: Float32) -> Float32:
        divisor = np.sqrt(sketched, out=sketched)
        divisor += TINY
        return np.divide(np.sqrt(normalised, out=normalised), divisor, out=normalised)


def _plain(shape: tuple[int, int], role: str) -> bool:
    """Whether Adam itself is used."""
    return shape[0] == 1 or role != MATRIX


def _square_sums(x: Float32, over: str) -> Float32:
    """Sums of squares of each row ("i") or column ("j")."""
    sums: Float32 = np.einsum(f"ij,ij->{over}", x, x)
    return sums


RULE = Apollo
