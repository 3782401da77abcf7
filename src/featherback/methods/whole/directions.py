"""Random directions through all trained weights, and the gradient along them. No direction is ever held in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

from featherback.core.noise import Key
from featherback.engine.backend.protocol import Array, Operations
from featherback.methods.whole.trained_weights import WeightId
from featherback.nn.context import Context
from featherback.nn.slots import EMBEDDING, HEAD


@dataclass(frozen=True)
class PerturbedWeights:
    """theta + factor z, z ~ N(0, I), for a model's weights. Implements `nn.context.Perturbations`."""

    ops: Operations
    key: Key
    factor: float
    trained: Collection[tuple[str, int | None]]  # (part, layer) of each trained weight
    tied: bool

    def affects(self, part: str, layer: int | None) -> bool:
        return (self._stored(part), layer) in self.trained

    def add(self, part: str, layer: int | None, corner: tuple[int, int], out: Array) -> None:
        name = self._stored(part)
        key = (*self.key, crc32(name.encode()), 0 if layer is None else layer + 1)
        self.ops.add_normals(key, corner, self.factor, out)

    def _stored(self, part: str) -> str:
        return EMBEDDING if self.tied and part == HEAD else part


@dataclass(frozen=True)
class DirectionGradient:
    """The gradient of a weight (rows, cols) along random directions: the sum of slope times z."""

    ctx: Context
    weight: WeightId
    shape: tuple[int, int]
    along: Sequence[PerturbedWeights]  # the directions, with slopes as factors
    few: None = None

    def tiles(self, height: int) -> Iterator[tuple[slice, Array]]:
        ctx, (part, layer, first_row), (rows, cols) = self.ctx, self.weight, self.shape
        for first, last in ctx.tiles(rows, height):
            with ctx.frame():
                gradient = ctx.floats("gradient along directions", last - first, cols)
                ctx.ops.fill(gradient, 0)
                # For a vector, first_row counts elements.
                corner = (0, first_row) if rows == 1 else (first_row + first, 0)
                for moved in self.along:
                    moved.add(part, layer, corner, gradient)
                yield slice(first, last), gradient
