"""MLorc: AdamW with moments stored as products of thin matrices (Shen et al., AISTATS 2026, arXiv 2506.01897)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

from featherback.core.options import option
from featherback.engine.backend.protocol import Array
from featherback.nn.slots import MATRIX
from featherback.optim.rule import StepArgs, Tensor, as_matrix, pieces, tiles
from featherback.optim.rules.adamw import AdamW

_PURPOSE = crc32(b"mlorc")
MOMENTS = ("first", "second")


@dataclass(frozen=True, kw_only=True)
class MLorc(AdamW):
    """m = beta1 Qm Bm + (1 - beta1) g
    v = beta2 w + (1 - beta2) g^2, where w is Qv Bv with negative elements replaced by the mean of their magnitudes
    p = p (1 - lr weight_decay) - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps);  t = step
    Q = an orthonormal basis of A Omega, B = Q^T A, for A = m and v; Omega is normal, (columns, mlorc_rank)

    Q B is the product of the three factors of a randomised SVD (Halko, Martinsson, Tropp, 2011) without oversampling,
    as in the authors' code: the SVD of B would change the factors but not their product. Vectors use AdamW.
    """

    FOR_ADAPTERS: ClassVar[bool] = False  # adapters' matrices are already as thin as the factors

    mlorc_rank: int = option(4, least=1, help="Rank of the stored moments.")

    def state_sizes(self, shape: tuple[int, ...], role: str = MATRIX) -> dict[str, int]:
        rows, cols = as_matrix(shape)
        if rows == 1:
            return super().state_sizes(shape, role)
        rank = self._rank((rows, cols))
        return {f"{name}_{part}": rank * n for name in MOMENTS for part, n in (("left", rows), ("right", cols))}

    def update(self, tensor: Tensor, turn: StepArgs) -> None:
        rows, cols = tensor.shape
        if rows == 1:
            return super().update(tensor, turn)
        on, ops, rank = tensor.on, tensor.on.ops, self._rank(tensor.shape)
        negative = _mean_of_negative(tensor, rank)
        with on.frame():
            bases = [on.floats(f"Q, {name}", rows, rank) for name in MOMENTS]
            self._find_bases(tensor, turn, negative, bases)
            rights = [on.floats(f"B, {name}", rank, cols) for name in MOMENTS]
            for right in rights:
                ops.fill(right, 0)
            for part, gradient in tensor.gradient():
                with tensor.values(part) as values:
                    for piece, moments in self._moments(tensor, part, gradient, negative, turn):
                        for moment, basis, right in zip(moments, bases, rights, strict=True):
                            ops.lora_gradient(basis[part][piece], moment, right, accumulate=True)
                        self._step(tensor, values[piece], *moments, turn)
            for name, basis, right in zip(MOMENTS, bases, rights, strict=True):
                for part in tiles(tensor.shape):
                    with _left(tensor, name, part, rank) as held:
                        ops.cast(basis[part], held)
                with tensor.state(f"{name}_right") as held:
                    ops.cast(right, held.reshape(rank, cols))

    def _find_bases(self, tensor: Tensor, turn: StepArgs, negative: float, bases: Sequence[Array]) -> None:
        """Compute orthonormal bases (rows, rank) of the ranges of both moments."""
        on, ops, (rows, cols) = tensor.on, tensor.on.ops, tensor.shape
        rank, key = self._rank(tensor.shape), (_PURPOSE, turn.seed, turn.step, *tensor.key)
        with on.frame():
            tests = [on.floats("Omega^T", rank * cols) for _ in MOMENTS]
            for number, test in enumerate(tests):
                ops.fill(test, 0)
                ops.add_normal((*key, number), 1, test)
            for part, gradient in tensor.gradient():
                for piece, moments in self._moments(tensor, part, gradient, negative, turn):
                    for moment, test, image in zip(moments, tests, bases, strict=True):
                        ops.lora_in(moment, test.reshape(rank, cols), image[part][piece], 1)
        with on.frame():
            room = on.floats("room for a decomposition", 8 * rows * rank)
            for basis in bases:
                ops.orthonormal(basis, room)

    def _rank(self, shape: tuple[int, int]) -> int:
        return min(self.mlorc_rank, *shape)

    def _moments(
        self, tensor: Tensor, part: slice, gradient: Array, negative: float, turn: StepArgs
    ) -> Iterator[tuple[slice, tuple[Array, Array]]]:
        """Yield m and v for some rows of a tile at a time. The caller may overwrite them."""
        on, ops, rank, cols = tensor.on, tensor.on.ops, self._rank(tensor.shape), tensor.shape[1]
        with (
            _left(tensor, "first", part, rank) as first,
            tensor.state("first_right") as first_right,
            _left(tensor, "second", part, rank) as second,
            tensor.state("second_right") as second_right,
        ):
            for piece in pieces(on, gradient.shape):
                with on.frame():
                    shape = gradient[piece].shape
                    m, v, g, term = (on.floats(name, *shape) for name in ("m", "v", "gradient, scaled", "term"))
                    ops.multiply(gradient[piece], turn.grad_scale, g)
                    ops.matmul(first[piece], first_right.reshape(rank, cols), m)
                    ops.multiply(m, self.beta1, m)
                    ops.multiply(g, 1 - self.beta1, term)
                    ops.add(m, term, m)
                    ops.matmul(second[piece], second_right.reshape(rank, cols), v)
                    ops.replace_negatives(v, negative)
                    ops.multiply(v, self.beta2, v)
                    ops.multiply(g, g, g)
                    ops.multiply(g, 1 - self.beta2, g)
                    ops.add(v, g, v)
                    yield piece, (m, v)

    def _step(self, tensor: Tensor, values: Array, m: Array, v: Array, turn: StepArgs) -> None:
        ops = tensor.on.ops
        ops.divide(v, 1 - self.beta2**turn.step, v)
        ops.sqrt(v, v)
        ops.add(v, self.eps, v)
        ops.multiply(m, turn.lr / (1 - self.beta1**turn.step), m)
        ops.divide(m, v, m)
        ops.multiply(values, 1 - turn.lr * self.weight_decay, values)
        ops.subtract(values, m, values)


def _mean_of_negative(tensor: Tensor, rank: int) -> float:
    """Return the mean magnitude of the negative elements of the stored second moment."""
    on, ops, cols = tensor.on, tensor.on.ops, tensor.shape[1]
    total, count = 0.0, 0
    with tensor.state("second_right") as right:
        for part in tiles(tensor.shape):
            with _left(tensor, "second", part, rank) as left:
                for piece in pieces(on, (len(left), cols)):
                    with on.frame():
                        kept = on.floats("v as stored", len(left[piece]), cols)
                        ops.matmul(left[piece], right.reshape(rank, cols), kept)
                        below, number = ops.negatives(kept)
                        total, count = total - below, count + number
    return total / max(1, count)


@contextmanager
def _left(tensor: Tensor, name: str, part: slice, rank: int) -> Iterator[Array]:
    """Provide rows of a moment's left factor (n, rank)."""
    with tensor.state(f"{name}_left", part.start * rank, (part.stop - part.start) * rank) as held:
        yield held.reshape(part.stop - part.start, rank)


RULE = MLorc
