"""An adapter merged into its base: W' = stored(W + D), a few rows at a time, and what storing it cost."""

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
from featherback.models.form import Place
from featherback.models.lora import Adapter
from featherback.models.streams import floats_of, give_back, row_blocks
from featherback.nn.adapters.base import Values

Float32 = NDArray[np.float32]

ENOUGH = 0.99
"""Share of an update that is kept where the user names no type; as much too much is as far from it."""
_HOPELESS = 0.05
"""How far from 1 the share is, over some hundred thousand weights, where more of them need not be looked at."""
_COARSE_TO_FINE = (
    TensorType.Q4_0, TensorType.Q4_1, TensorType.Q5_0, TensorType.Q5_1, TensorType.Q8_0, TensorType.BF16,
    TensorType.F16, TensorType.F32,
)  # fmt: skip
"""What merged weights can be stored as."""
_FINER = (TensorType.Q8_0, TensorType.F16, TensorType.F32)
"""What is tried, in turn, where the base's own type keeps too little of an update."""


@dataclass
class MergeCost:
    """What storing changed weights cost, summed over all that were changed. Frobenius norms.

    D is the change, an adapter's or a whole training's: W + D is what was to be stored, and W' is what is.
    """

    merged: float = 0.0  # ||W + D||^2
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
    def keeps_enough(self) -> bool:
        """Whether the share of D that survives is ENOUGH, and not more than 1 by as much as it may be less."""
        return abs(1 - self.surviving) <= 1 - ENOUGH

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


class Rows(NamedTuple):
    """Some rows (n, in) of a projection: W, D, and W' as its bytes and as float32."""

    before: Float32
    update: Float32
    data: NDArray[np.uint8]
    after: Float32


class Merge:
    """The projections of a model with an adapter in them. `cost` grows as they are read.

    `types`: those in which they may be stored.
    """

    def __init__(self, adapter: Adapter, types: Collection[TensorType] = _COARSE_TO_FINE) -> None:
        _check_biases(adapter)
        self.adapter, self.cost, self._types = adapter, MergeCost(), types
        self.finer: Counter[tuple[TensorType, TensorType]] = Counter()
        """(the base's own type, or the next that can be written; the type chosen instead) -> projections."""
        self.own_cost = MergeCost()
        """What the base's own types would cost, measured on a part of the weights."""
        self.unwritable: dict[TensorType, TensorType] = {}
        """A type that was wanted, or is the base's -> the type in its place, as it cannot be written."""
        self._layer: int | None = None
        self._flat = np.empty(adapter.layer_size, np.float32)

    def type_of(self, place: Place, wanted: TensorType | None) -> TensorType:
        """The type for a merged projection: `wanted`, where that can hold its rows; else the coarsest, from the base's
        own on, in which ENOUGH of its update survives.
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

    def _keeps(self, place: Place, kind: TensorType, cost: MergeCost) -> bool:
        """Whether `kind` keeps ENOUGH of a projection's update. What is looked at for that is added to `cost`."""
        measured = MergeCost()
        for rows in self._rows(place, kind):
            if not np.isfinite(rows.after).all():
                return False
            for each in (measured, cost):
                each.add(rows.before, rows.update, rows.after)
            if abs(1 - measured.surviving) > _HOPELESS:
                return False
        return measured.keeps_enough

    def chunks(self, place: Place, kind: TensorType) -> Iterator[memoryview]:
        """The bytes of a merged projection, stored as `kind`, its rows in the order of the base's file.

        FeatherbackError if it holds a value that `kind` cannot.
        """
        layer, target = place
        for rows in self._rows(place, kind):
            if not np.isfinite(rows.after).all():
                raise FeatherbackError(
                    f"The merged {target} of layer {layer} has a value that {kind.name} cannot hold; choose "
                    f"another {argument('type')}, such as bf16."
                )
            self.cost.add(rows.before, rows.update, rows.after)
            yield rows.data.data

    def _rows(self, place: Place, kind: TensorType) -> Iterator[Rows]:
        """A projection with its adapter, a few rows at a time."""
        layer, target = place
        stored = self.adapter.model.layer(layer).matrices[target]
        adapted, values = self.adapter.layout.kinds(layer)[target], self._values(layer)[target]
        for first, last in row_blocks(stored.rows, stored.cols):
            before = floats_of(stored.rows_between(first, last))
            with np.errstate(over="ignore", invalid="ignore"):  # what that comes to is looked at below
                update = adapted.change_of(before, values, first, last)
                data = quantize(before + update, kind)
            after = floats_of(Matrix(data, kind, last - first, stored.cols))
            yield Rows(before, update, data, after)
            give_back(stored.data)

    def _values(self, layer: int) -> Mapping[str, Values]:
        """target -> the trained tensors of a layer, by slot."""
        if layer != self._layer:
            self.adapter.parameters.read(layer, self._flat)
            self._layer = layer
        return self.adapter.layout.view(layer, self._flat)


def _check_biases(adapter: Adapter) -> None:
    """FeatherbackError if a projection's bias would have to change with its weight: biases are copied as they are."""
    for layer, block in enumerate(adapter.model.blocks):
        for target, kind in adapter.layout.kinds(layer).items():
            if kind.changes_bias(target) and f"{target.removesuffix('_proj')}_bias" in block.vectors:
                raise FeatherbackError(
                    f"The adapter is an {kind.title} that scales the bias of {target}, which merging leaves alone; "
                    f"export it {argument('to', 'peft')}."
                )


def stored_type(matrix: Matrix, wanted: TensorType | None) -> TensorType:
    """The type in which a merged matrix is stored: `wanted` or the base's, or where that cannot be written, the next
    finer that can.
    """
    kind = matrix.type if wanted is None else wanted  # F32 is 0
    for candidate in (kind, TensorType.Q8_0, TensorType.F16):
        if quantizable(candidate) and matrix.cols % candidate.block_size == 0:
            return candidate
    raise AssertionError("F16 holds rows of any length")


def _squares(values: Float32) -> float:
    return float(kernels.sum_squares(values.reshape(-1)))
