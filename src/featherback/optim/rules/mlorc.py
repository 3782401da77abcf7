"""MLorc: AdamW whose moments are kept as products of thin matrices (Shen et al., AISTATS 2026, arXiv 2506.01897)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

import numpy as np

from featherback import kernels
from featherback.noise import normal
from featherback.optim.rule import Float32, Tensor, Turn, as_matrix, pieces, tiles
from featherback.optim.rules.adamw import AdamW
from featherback.options import option
from featherback.parameters.roles import MATRIX

_PURPOSE = crc32(b"mlorc")
MOMENTS = ("first", "second")


@dataclass(frozen=True, kw_only=True)
class MLorc(AdamW):
    """m = beta1 Qm Bm + (1 - beta1) g
    v = beta2 w + (1 - beta2) g^2, where w is Qv Bv, its negative elements replaced by the mean of their magnitudes
    p = p (1 - lr weight_decay) - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps);  t = step
    Q = an orthonormal basis of A Omega, B = Q^T A, for A = m and v, with normal numbers Omega (columns, mlorc_rank)

    Q B is the product of a randomised SVD's three factors (Halko, Martinsson and Tropp, 2011) without oversampling, as
    the authors take it: the SVD of B would change its factors and nothing else. Vectors have AdamW.
    """

    FOR_ADAPTERS: ClassVar[bool] = False  # their matrices are as thin as the factors
    READINGS: ClassVar[int] = 2
    TEMPORARIES: ClassVar[int] = 1

    mlorc_rank: int = option(4, least=1, help="Rank in which moments are kept.")

    def state_sizes(self, shape: tuple[int, ...], role: str = MATRIX) -> dict[str, int]:
        rows, cols = as_matrix(shape)
        if rows == 1:
            return super().state_sizes(shape, role)
        rank = self._rank((rows, cols))
        return {f"{name}_{part}": rank * n for name in MOMENTS for part, n in (("left", rows), ("right", cols))}

    def workspace(self, shape: tuple[int, ...], role: str = MATRIX) -> int:
        rows, cols = as_matrix(shape)
        return 0 if rows == 1 else self._rank((rows, cols)) * (10 * rows + 4 * cols)

    def update(self, tensor: Tensor, turn: Turn) -> None:
        rows, cols = tensor.shape
        if rows == 1:
            return super().update(tensor, turn)
        rank = self._rank(tensor.shape)
        negative = _mean_of_negative(tensor, rank)
        key = (_PURPOSE, turn.seed, turn.step, *tensor.key)
        tests = [normal((*key, number), rank * cols).reshape(rank, cols) for number in range(len(MOMENTS))]
        images = [np.empty((rows, rank), np.float32) for _ in MOMENTS]
        for part, gradient in tensor.gradient():
            for piece, moments in self._moments(tensor, part, gradient, negative, turn):
                for moment, test, image in zip(moments, tests, images, strict=True):
                    kernels.lora_in(moment, test, image[part][piece])
        del tests
        bases = [_basis(image) for image in images]
        rights = [np.zeros((rank, cols), np.float32) for _ in MOMENTS]
        for part, gradient in tensor.gradient():
            with tensor.values(part) as values:
                for piece, moments in self._moments(tensor, part, gradient, negative, turn):
                    for moment, basis, right in zip(moments, bases, rights, strict=True):
                        kernels.lora_gradient(basis[part][piece], moment, right, accumulate=True)
                    self._step(values[piece], *moments, turn)
        for name, basis, right in zip(MOMENTS, bases, rights, strict=True):
            for part in tiles(tensor.shape):
                with _left(tensor, name, part, rank) as held:
                    held[...] = basis[part]
            with tensor.state(f"{name}_right") as held:
                held[...] = right.reshape(-1)

    def _rank(self, shape: tuple[int, int]) -> int:
        return min(self.mlorc_rank, *shape)

    def _moments(
        self, tensor: Tensor, part: slice, gradient: Float32, negative: float, turn: Turn
    ) -> Iterator[tuple[slice, tuple[Float32, Float32]]]:
        """m and v, which may be overwritten, for some rows of a tile at a time."""
        rank = self._rank(tensor.shape)
        with (
            _left(tensor, "first", part, rank) as first,
            tensor.state("first_right") as first_right,
            _left(tensor, "second", part, rank) as second,
            tensor.state("second_right") as second_right,
        ):
            for piece in pieces(gradient.shape):
                g = gradient[piece] * np.float32(turn.grad_scale)
                m = first[piece] @ first_right.reshape(rank, -1)
                m *= self.beta1
                m += (1 - self.beta1) * g
                v = second[piece] @ second_right.reshape(rank, -1)
                v[v < 0] = negative
                v *= self.beta2
                g *= g
                g *= 1 - self.beta2
                v += g
                yield piece, (m, v)

    def _step(self, values: Float32, m: Float32, v: Float32, turn: Turn) -> None:
        v /= 1 - self.beta2**turn.step
        np.sqrt(v, out=v)
        v += self.eps
        m *= turn.lr / (1 - self.beta1**turn.step)
        m /= v
        values *= 1 - turn.lr * self.weight_decay
        values -= m


def _mean_of_negative(tensor: Tensor, rank: int) -> float:
    """The mean magnitude of what is negative of the second moment as it is kept."""
    total, count = 0.0, 0
    with tensor.state("second_right") as right:
        for part in tiles(tensor.shape):
            with _left(tensor, "second", part, rank) as left:
                for piece in pieces((len(left), tensor.shape[1])):
                    kept = left[piece] @ right.reshape(rank, -1)
                    below = kept[kept < 0]
                    total -= float(below.sum(dtype=np.float64))
                    count += below.size
    return total / max(1, count)


def _basis(image: Float32) -> Float32:
    """Orthonormal columns that span those of a thin matrix."""
    return np.linalg.qr(image)[0].astype(np.float32, copy=False)


@contextmanager
def _left(tensor: Tensor, name: str, part: slice, rank: int) -> Iterator[Float32]:
    """Rows of a moment's left factor (n, rank)."""
    with tensor.state(f"{name}_left", part.start * rank, (part.stop - part.start) * rank) as held:
        yield held.reshape(-1, rank)


RULE = MLorc
