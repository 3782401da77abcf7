"""Merge an adapter into its base model: W' = stored(W + D), a few rows at a time, and measure the rounding."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.core.naming import argument
from featherback.engine import kernels
from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.quantize import quantizable, quantize
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.models.adapter import Adapter
from featherback.models.form import LayerTarget
from featherback.models.streams import floats_of, row_blocks, unmap_pages
from featherback.nn.adapters.base import Values

Float32 = NDArray[np.float32]

ENOUGH = 0.99
"""The share of an update that must survive if the user names no type. A share above 2 - ENOUGH is rejected as well."""
_HOPELESS = 0.05
"""If the share differs from 1 by more than this over a few rows, the other rows are not measured."""
_COARSE_TO_FINE = (
    TensorType.Q4_0, TensorType.Q4_1, TensorType.Q5_0, TensorType.Q5_1, TensorType.Q8_0, TensorType.BF16,
    TensorType.F16, TensorType.F32,
)  # fmt: skip
"""The types in which merged weights can be stored."""
_FINER = (TensorType.Q8_0, TensorType.F16, TensorType.F32)
"""The types to try, in this order, if the base model's own type keeps too little of an update."""


@dataclass
class MergeCost:
    """The rounding of changed weights, summed over all of them, in Frobenius norms.

    W is the old weight and D its change, by an adapter or by training. W + D is rounded, and W' is stored.
    """

    merged: float = 0.0  # ||W + D||^2
    update: float = 0.0  # ||D||^2
    error: float = 0.0  # ||W' - (W + D)||^2
    kept: float = 0.0  # <W' - W, D>

    @property
    def relative_error(self) -> float:
        """The rounding error ||W' - (W + D)|| / ||W + D||."""
        return math.sqrt(self.error / self.merged) if self.merged else 0.0

    @property
    def relative_update(self) -> float:
        """The size of the update, ||D|| / ||W + D||."""
        return math.sqrt(self.update / self.merged) if self.merged else 0.0

    @property
    def surviving(self) -> float:
        """The share of D that survives in W' - W: <W' - W, D> / ||D||^2, 1 if nothing is lost."""
        return self.kept / self.update if self.update else 1.0

    @property
    def keeps_enough(self) -> bool:
        """Whether the surviving share differs from 1 by at most 1 - ENOUGH."""
        return abs(1 - self.surviving) <= 1 - ENOUGH

    @property
    def noise(self) -> float:
        """The rounding error as a multiple of the update, ||W' - (W + D)|| / ||D||."""
        return math.sqrt(self.error / self.update) if self.update else 0.0

    def add(self, before: Float32, update: Float32, after: Float32) -> None:
        """Add some rows, each array (n, in): W, D and W'."""
        wanted = before + update
        self.merged += _squares(wanted)
        self.update += _squares(update)
        self.kept += float(np.vdot((after - before).astype(np.float64), update))
        np.subtract(after, wanted, out=wanted)
        self.error += _squares(wanted)


class Rows(NamedTuple):
    """Some rows of a projection: W and D (n, in), and W' as bytes and as float32 (n, in)."""

    before: Float32
    update: Float32
    data: NDArray[np.uint8]
    after: Float32


class Merge:
    """The merged projections of a model. Reading them adds to `cost`.

    `types`: the types in which they may be stored.
    """

    def __init__(self, adapter: Adapter, types: Collection[TensorType] = _COARSE_TO_FINE) -> None:
        _check_biases(adapter)
        self.adapter, self.cost, self._types = adapter, MergeCost(), types
        self.finer: Counter[tuple[TensorType, TensorType]] = Counter()
        """(the base model's type, or the next that can be written; the finer type chosen) -> number of projections."""
        self.own_cost = MergeCost()
        """The rounding by the base model's own types, measured on a part of the weights."""
        self.unwritable: dict[TensorType, TensorType] = {}
        """A type that cannot be written -> the type used instead."""
        self._layer: int | None = None
        self._flat = np.empty(adapter.layer_size, np.float32)

    def type_of(self, place: LayerTarget, wanted: TensorType | None) -> TensorType:
        """Choose the type of a merged projection.

        It is `wanted`, or the next finer type that can hold its rows. With None it is the base model's own type, or the
        coarsest finer type in which ENOUGH of the update survives.
        """
        layer, target = place
        stored = self.adapter.model.layer(layer).matrices[target]
        own = stored_type(stored, wanted)
        if own is not (asked := stored.type if wanted is None else wanted):
            self.unwritable[asked] = own
        if wanted is not None or self._keeps(place, own, self.own_cost):
            return own
        for kind in _FINER:
            if (
                kind in self._types
                and stored.cols % kind.block_size == 0
                and _COARSE_TO_FINE.index(kind) > _COARSE_TO_FINE.index(own)
                and (kind is TensorType.F32 or self._keeps(place, kind, MergeCost()))
            ):
                self.finer[own, kind] += 1
                return kind
        return own  # F32

    def _keeps(self, place: LayerTarget, kind: TensorType, cost: MergeCost) -> bool:
        """Whether `kind` keeps ENOUGH of a projection's update. The rows that are measured are added to `cost`."""
        measured = MergeCost()
        for rows in self._rows(place, kind):
            if not np.isfinite(rows.after).all():
                return False
            for each in (measured, cost):
                each.add(rows.before, rows.update, rows.after)
            if abs(1 - measured.surviving) > _HOPELESS:
                return False
        return measured.keeps_enough

    def chunks(self, place: LayerTarget, kind: TensorType, wanted: range | None = None) -> Iterator[memoryview]:
        """Yield the bytes of a merged projection as `kind`, with the rows in the order of the base model's file.

        `wanted`: only these rows, one after the other. Raises FeatherbackError if `kind` cannot hold one of its values.
        """
        layer, target = place
        for rows in self._rows(place, kind, wanted):
            if not np.isfinite(rows.after).all():
                raise FeatherbackError(
                    f"The merged {target} of layer {layer} has a value that {kind.name} cannot hold; choose "
                    f"{argument('type', 'bf16')}."
                )
            self.cost.add(rows.before, rows.update, rows.after)
            yield rows.data.data

    def _rows(self, place: LayerTarget, kind: TensorType, wanted: range | None = None) -> Iterator[Rows]:
        """Merge a projection, a few rows at a time."""
        layer, target = place
        stored = self.adapter.model.layer(layer).matrices[target]
        adapted, values = self.adapter.layout.kinds(layer)[target], self._values(layer)[target]
        wanted = range(stored.rows) if wanted is None else wanted
        for begin, end in row_blocks(len(wanted), stored.cols):
            first, last = wanted.start + begin, wanted.start + end
            before = floats_of(stored.rows_between(first, last))
            with np.errstate(over="ignore", invalid="ignore"):  # the callers check that the result is finite
                update = adapted.change_of(before, values, first, last)
                data = quantize(before + update, kind)
            after = floats_of(Matrix(data, kind, last - first, stored.cols))
            yield Rows(before, update, data, after)
            unmap_pages(stored.data)

    def _values(self, layer: int) -> Mapping[str, Values]:
        """target -> slot -> trained tensor of a layer."""
        if layer != self._layer:
            self.adapter.parameters.read(layer, self._flat)
            self._layer = layer
        return self.adapter.layout.view(layer, self._flat)


def _check_biases(adapter: Adapter) -> None:
    """Raise FeatherbackError if the adapter changes a bias: merging copies biases."""
    for layer, block in enumerate(adapter.model.blocks):
        for target, kind in adapter.layout.kinds(layer).items():
            if kind.changes_bias(target) and f"{target.removesuffix('_proj')}_bias" in block.vectors:
                raise FeatherbackError(
                    f"The {kind.title} adapter scales the bias of {target}, and merging does not change biases; "
                    f"export with {argument('to', 'peft')}."
                )


def stored_type(matrix: Matrix, wanted: TensorType | None) -> TensorType:
    """The type of a merged matrix: `wanted` or the base model's type, or the next finer one that can be written."""
    kind = matrix.type if wanted is None else wanted  # F32 is 0
    for candidate in (kind, TensorType.Q8_0, TensorType.F16):
        if quantizable(candidate) and matrix.cols % candidate.block_size == 0:
            return candidate
    raise AssertionError("F16 holds rows of any length")


def _squares(values: Float32) -> float:
    return float(kernels.sum_squares(values.reshape(-1)))
