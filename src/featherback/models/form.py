"""What an adapter is beside its values: how each projection is adapted, and where the values lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from featherback.models.architecture.names import parse_targets
from featherback.nn.adapters import made
from featherback.nn.adapters.base import Kind, Part
from featherback.nn.adapters.lora import LoRAKind
from featherback.nn.block import Block, adaptable
from featherback.nn.slots import Slot, SlotTable

Place = tuple[int, str]
"""A projection: layer, and target."""
Exceptions = Mapping[Place, Kind | None]
"""Where projections are adapted otherwise than usual. None: not at all."""


@dataclass(frozen=True)
class Form:
    """Adapters that were made elsewhere may have other settings, or no values at all, in some places: `exceptions`."""

    kind: Kind = field(default_factory=LoRAKind)
    targets: tuple[str, ...] = ("all",)
    exceptions: Exceptions = field(default_factory=dict)

    @classmethod
    def of(cls, **options: Any) -> Form:
        """That of a user's options: `targets`, and those of `nn.adapters.made`."""
        return cls(made(options), options.get("targets", ("all",)))

    def at(self, layer: int, target: str) -> Kind | None:
        """How a projection is adapted; None if it is not."""
        return self.exceptions.get((layer, target), self.kind) if target in self.targets else None

    def replaced(self, **settings: Any) -> Form:
        """With other settings everywhere."""
        others = {place: kind and replace(kind, **settings) for place, kind in self.exceptions.items()}
        return replace(self, kind=replace(self.kind, **settings), exceptions=others)

    @property
    def widest(self) -> Form:
        """The same everywhere, with the settings that take most memory."""
        kinds = [self.kind, *(kind for kind in self.exceptions.values() if kind is not None)]
        return Form(max(kinds, key=lambda kind: kind.width), self.targets)

    @property
    def growth(self) -> float:
        """What the usual learning rate is divided by."""
        return self.widest.kind.growth

    @property
    def options(self) -> dict[str, Any]:
        """As a user names it."""
        return self.widest.kind.options() | {"alpha": self.kind.options().get("alpha"), "targets": self.targets}


class Layout:
    """Where an adapter's values lie in a layer's flat vector: for each target its parts, one after the other."""

    def __init__(self, blocks: Sequence[Block], form: Form) -> None:
        self._blocks = blocks
        self.form = replace(form, targets=parse_targets(form.targets, adaptable(blocks)))
        layers = range(len(blocks))
        self.slots = SlotTable(
            [
                {f"{target}.{part.slot}": part.shape for target, part in self._parts(layer)}
                for layer in layers
            ]
        )  # fmt: skip
        self.fixed, self.prepared = (
            SlotTable([self._beside(layer, name) for layer in layers]) for name in ("fixed", "prepared")
        )

    @property
    def size(self) -> int:
        """Values of a layer's flat vector."""
        return self.slots.size

    @property
    def most_rank(self) -> int:
        """The most columns that are read of an input."""
        return self.form.widest.kind.width

    def kinds(self, layer: int) -> dict[str, Kind]:
        """target -> how it is adapted, of those that are in a layer."""
        found = {target: self.form.at(layer, target) for target in self._blocks[layer].projections}
        return {target: kind for target, kind in found.items() if kind is not None}

    def of_layers(self, layers: Sequence[int]) -> Layout:
        """The layout of these layers alone, in vectors of the same size."""
        some = copy(self)
        some._blocks = [self._blocks[layer] for layer in layers]
        some.slots, some.fixed, some.prepared = (
            table.of_layers(layers) for table in (self.slots, self.fixed, self.prepared)
        )
        return some

    def parts(self, layer: int, target: str) -> dict[str, Part]:
        """The trained tensors of a projection; none if it is not adapted."""
        kind = self.form.at(layer, target)
        return {} if kind is None else kind.parts(target, self._blocks[layer].projections[target])

    def view(self, layer: int, flat: Any) -> dict[str, dict[str, Any]]:
        """target -> its trained tensors by slot: views of one layer's flat vector (size,)."""
        found: dict[str, dict[str, Any]] = {target: {} for target in self.kinds(layer)}
        for name, values in self.slots.view(layer, flat).items():
            target, _, slot = name.partition(".")
            found[target][slot] = values
        return found

    def rate(self, ratio: float, slot: Slot) -> float:
        """A tensor's share of the learning rate; `ratio`: LoRA+'s."""
        return self.form.kind.rate(slot.name.partition(".")[2], ratio)

    def _parts(self, layer: int) -> Iterator[tuple[str, Part]]:
        for target in self.kinds(layer):
            for part in self.parts(layer, target).values():
                yield target, part

    def _beside(self, layer: int, name: str) -> dict[str, tuple[int, ...]]:
        """target -> how much there is of "fixed" or "prepared" values."""
        shapes = self._blocks[layer].projections
        sizes = {target: getattr(kind, name)(shapes[target]) for target, kind in self.kinds(layer).items()}
        return {target: (size,) for target, size in sizes.items() if size}
