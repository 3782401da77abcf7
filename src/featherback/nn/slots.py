"""Slots: the places of trained tensors in flat vectors, one vector per layer, tensor after tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

MATRIX, TABLE = "matrix", "table"
"""A row of a TABLE belongs to a token. A vector needs no role because its shape has one dimension."""

EMBEDDING, HEAD, NORM, NORM_BIAS = "embed_tokens", "lm_head", "norm", "norm_bias"
"""Names of the tensors outside the blocks."""


@dataclass(frozen=True)
class Slot:
    """One trained tensor."""

    name: str  # within its layer
    shape: tuple[int, ...]
    layer: int
    start: int  # index of its first value in the layer's flat vector

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


class SlotTable:
    """The slots of every layer. `layers`: for each layer name -> shape, in the order of the flat vector."""

    def __init__(self, layers: Sequence[Mapping[str, tuple[int, ...]]]) -> None:
        self._layers = [self._laid_out(number, shapes) for number, shapes in enumerate(layers)]
        self.size = max(sum(slot.size for slot in slots) for slots in self._layers)
        """Number of values in the largest layer: the length of a flat vector."""

    def of_layers(self, layers: Sequence[int]) -> SlotTable:
        """Return the table of these layers only, for vectors of the same size."""
        some = copy(self)
        some._layers = [self._layers[layer] for layer in layers]
        return some

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self._layers)

    def layer(self, index: int) -> tuple[Slot, ...]:
        """Return the slots of a layer."""
        return self._layers[index]

    @property
    def distinct(self) -> list[tuple[Slot, ...]]:
        """The slots of one layer of each kind. Layers whose tensors have the same shapes are of one kind."""
        return list({tuple(slot.shape for slot in slots): slots for slots in self._layers}.values())

    def view(self, index: int, flat: Any) -> dict[str, Any]:
        """Return name -> the tensor's values in the flat vector (size,) of a layer, as views in their shapes."""
        return {
            slot.name: flat[slot.start : slot.start + slot.size].reshape(*slot.shape) for slot in self._layers[index]
        }

    @staticmethod
    def _laid_out(number: int, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Slot, ...]:
        slots, start = [], 0
        for name, shape in shapes.items():
            slots.append(Slot(name, tuple(shape), number, start))
            start += slots[-1].size
        return tuple(slots)
