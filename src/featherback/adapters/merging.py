"""An adapter merged into its base: W' = stored(W + scale B A), a few rows at a time, and what storing it cost.

With DoRA, W' = stored(c (W + scale B A)), each row of length m.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.adapters.lora import LoRA, Place
from featherback.errors import FeatherbackError
from featherback.layers.linear import Factors
from featherback.models.streams import floats_of, give_back, row_blocks
from featherback.weights.matrix import Matrix
from featherback.weights.quantize import quantizable, quantize
from featherback.weights.types import TensorType

Float32 = NDArray[np.float32]


@dataclass
class MergeCost:
    """What storing merged weights cost, summed over all that were merged. Frobenius norms."""

    merged: float = 0.0  # ||W + D||^2, D = scale B A, or what makes c (W + scale B A) of W
    update: float = 0.0  # ||D||^2
    error: float = 0.0  # ||W' - (W + D)||^2
    kept: float = 0.0  # <W' - W, D>

    @property
    def relative_error(self) -> float:
        """||W' - (W + D)|| / ||W + D||."""
        return math.sqrt(self.error / self.merged) if self.merged else 0.0

    @property
    def relative_update(self) -> float:
        """||D|| / ||W + D||: what the adapter changes."""
        return math.sqrt(self.update / self.merged) if self.merged else 0.0

    @property
    def surviving(self) -> float:
        """The share of D that W' - W holds, along D: 1 if nothing is lost."""
        return self.kept / self.update if self.update else 1.0

    @property
    def noise(self) -> float:
        """||W' - (W + D)|| / ||D||: the error beside the adapter's own update."""
        return math.sqrt(self.error / self.update) if self.update else 0.0

    def add(self, before: Float32, update: Float32, after: Float32) -> None:
        """Count rows (n, in): W, D and W'."""
        wanted = before + update
        self.merged += _squares(wanted)
        self.update += _squares(update)
        self.kept += float(np.vdot((after - before).astype(np.float64), update))
        np.subtract(after, wanted, out=wanted)
        self.error += _squares(wanted)


class Merge:
    """The projections of a model with an adapter in them. `cost` grows as they are read."""

    def __init__(self, adapter: LoRA) -> None:
        self.adapter, self.cost = adapter, MergeCost()
        self._layer: int | None = None
        self._flat = np.empty(adapter.layer_size, np.float32)

    def chunks(self, place: Place, kind: TensorType) -> Iterator[memoryview]:
        """The bytes of a merged projection, stored as `kind`, its rows in the order of the base's file.

        FeatherbackError if it holds a value that `kind` cannot.
        """
        layer, target = place
        stored = self.adapter.model.layer(layer).matrices[target]
        a, bt, m = self._factors(layer)[target]
        scale = np.float32(self.adapter.form.scale(layer, target))
        for first, last in row_blocks(stored.rows, stored.cols):
            before = floats_of(stored.rows_between(first, last))
            with np.errstate(over="ignore", invalid="ignore"):  # what that comes to is looked at below
                update = np.ascontiguousarray(bt[:, first:last].T) @ a
                update *= scale
                if m is not None:
                    update = _lengthened(before, update, m[first:last])
                data = quantize(before + update, kind)
            after = floats_of(Matrix(data, kind, last - first, stored.cols))
            if not np.isfinite(after).all():
                raise FeatherbackError(
                    f"The merged {target} of layer {layer} has a value that {kind.name} cannot hold; choose another "
                    f"--type, such as bf16."
                )
            self.cost.add(before, update, after)
            yield data.data
            give_back(stored.data)

    def _factors(self, layer: int) -> dict[str, Factors]:
        """target -> A (r, in), B^T (r, out), m (out,) of a layer."""
        if layer != self._layer:
            self.adapter.parameters.read(layer, self._flat)
            self._layer = layer
        return self.adapter.layout.view(layer, self._flat)


def stored_type(matrix: Matrix, wanted: TensorType | None) -> TensorType:
    """The type in which a merged matrix is stored: `wanted` or the base's, or where that cannot be written, the next
    finer that can.
    """
    kind = matrix.type if wanted is None else wanted  # F32 is 0
    for candidate in (kind, TensorType.Q8_0, TensorType.F16):
        if quantizable(candidate) and matrix.cols % candidate.block_size == 0:
            return candidate
    raise AssertionError("F16 holds rows of any length")


def _lengthened(before: Float32, update: Float32, m: Float32) -> Float32:
    """What turns rows W (n, in) into those of W + `update` at the lengths m (n,)."""
    turned = before + update
    turned *= (m / np.sqrt(np.square(turned).sum(axis=1, dtype=np.float64)).astype(np.float32))[:, None]
    turned -= before
    return turned


def _squares(values: Float32) -> float:
    return float(kernels.sum_squares(values.reshape(-1)))
