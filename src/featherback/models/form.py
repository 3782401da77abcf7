"""The form of an adapter, apart from its values: how it adapts each projection, and the layout of its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from featherback.core.naming import argument
from featherback.errors import FeatherbackError
from featherback.models.architecture.layer_choice import EVERY, chosen_layers, written_layers
from featherback.models.architecture.names import parse_targets, short
from featherback.nn import score
from featherback.nn.adapters import made
from featherback.nn.adapters.base import Kind, Part
from featherback.nn.adapters.lora import LoRAKind
from featherback.nn.block import Block, adaptable
from featherback.nn.score import SCORE
from featherback.nn.slots import Slot, SlotTable

LayerTarget = tuple[int, str]
"""A projection of a layer: (layer, target), such as (3, "q_proj")."""
Exceptions = Mapping[LayerTarget, Kind | None]
"""Projections that are adapted in another way than the others; None: not adapted at all."""


@dataclass(frozen=True)
class Form:
    """The kind, the targets and the layers of an adapter.

    `exceptions`: projections with another kind, or with none. Adapters made by other programs may have them. `layers`:
    the layers that are adapted, in the words of `models.architecture.layer_choice`. `outputs`: the names of the scores
    of a trained head; empty: there is no such head, and the model's own head gives the logits of tokens.
    """

    kind: Kind = field(default_factory=LoRAKind)
    targets: tuple[str, ...] = ("all",)
    exceptions: Exceptions = field(default_factory=dict)
    layers: tuple[str, ...] = EVERY
    outputs: tuple[str, ...] = ()

    @classmethod
    def of(cls, **options: Any) -> Form:
        """Make the form of a user's options: `targets`, `layers`, and the options of `nn.adapters.made`."""
        kind = made(options)
        return cls(kind, options.get("targets", kind.targets), layers=options.get("layers", EVERY))

    def at(self, layer: int, target: str) -> Kind | None:
        """The kind that adapts a projection of a layer in `layers`; None if it is not adapted."""
        return self.exceptions.get((layer, target), self.kind) if target in self.targets else None

    def replaced(self, **settings: Any) -> Form:
        """Return a copy with these settings in every projection."""
        others = {place: kind and replace(kind, **settings) for place, kind in self.exceptions.items()}
        return replace(self, kind=replace(self.kind, **settings), exceptions=others)

    @property
    def widest(self) -> Form:
        """A form without exceptions, in which every projection has the settings that take the most memory."""
        kinds = [self.kind, *(kind for kind in self.exceptions.values() if kind is not None)]
        return Form(max(kinds, key=lambda kind: kind.width), self.targets, layers=self.layers, outputs=self.outputs)

    def extended(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the blocks with the kind's own branches behind them, if it has any. Equal blocks share one."""
        if not self.kind.is_branch:
            return list(blocks)
        distinct = {id(block): block.followed_by(self.kind.branch(block.width)) for block in blocks}
        return [distinct[id(block)] for block in blocks]

    @property
    def growth(self) -> float:
        """The divisor of the usual learning rate."""
        return self.widest.kind.growth

    @property
    def options(self) -> dict[str, Any]:
        """The form as the options of a user."""
        targets = ("all",) if self.kind.is_branch else self.targets
        own = {"alpha": self.kind.options().get("alpha"), "targets": targets, "layers": self.layers}
        return self.widest.kind.options() | own


class Layout:
    """The layout of an adapter's values in a flat vector per layer: the parts of each target, in order.

    A trained head is one more layer after the blocks, `head`. Its only target is `SCORE`.
    """

    def __init__(self, blocks: Sequence[Block], form: Form) -> None:
        self._head_shape = len(form.outputs), blocks[0].width
        self.blocks = form.extended(blocks)
        """The blocks, with the adapter's own branches where it has any."""
        targets = parse_targets(form.targets, adaptable(self.blocks))
        chosen = chosen_layers(form.layers, len(blocks))
        absent = _absent(self.blocks, targets) | _left_out(set(chosen), len(blocks), targets)
        self.form = replace(form, targets=targets, exceptions={**absent, **form.exceptions})
        self.layers = tuple(layer for layer in range(len(blocks)) if self.kinds(layer))
        """The blocks that are adapted, ascending."""
        if not self.layers:
            raise FeatherbackError(
                f"The layers {','.join(form.layers)} have none of the projections {short(targets)}; choose other "
                f"layers or targets."
            )
        self.blocks = [self.blocks[at] if at in self.layers else block for at, block in enumerate(blocks)]
        self._check_weights()
        self.form = replace(self.form, layers=written_layers(self.layers, len(blocks)))
        self.lowest = self.layers[0]
        """The lowest of them. The blocks below it need no backward pass, and their outputs never change."""
        self.head = len(blocks) if form.outputs else None
        """The layer of the trained head; None if there is none."""
        layers = range(len(blocks) + bool(form.outputs))
        self.slots = SlotTable(
            [
                {f"{target}.{part.slot}": part.shape for target, part in self._parts(layer)}
                for layer in layers
            ]
        )  # fmt: skip
        self.fixed, self.prepared = (
            SlotTable([self._value_counts(layer, name) for layer in layers]) for name in ("fixed", "prepared")
        )

    def _check_weights(self) -> None:
        """Raise FeatherbackError if a kind reads weights of a branch that hides them, or cannot adapt experts."""
        for layer, block in enumerate(self.blocks):
            kinds = self.kinds(layer)
            rejected = [name for name in self.form.targets if name in block.requested and name in kinds]
            rejected = [name for name in rejected if not kinds[name].adapts_experts]
            if rejected:
                kind = kinds[rejected[0]]
                what = "dropout" if getattr(kind, "dropout", 0) else kind.title
                raise FeatherbackError(
                    f"{short(rejected)} cannot be adapted with {what}, only with LoRA without dropout; remove "
                    f"experts and router from {argument('targets')}, or use plain LoRA."
                )
            for branch in block.branches:
                for name in (name for name in branch.projections if branch.hides_weights and name in kinds):
                    if kinds[name].fixed(branch.projections[name]):
                        raise FeatherbackError(
                            f"{kinds[name].title} reads the weights of {name}, which are ternary here but not in PEFT; "
                            f"choose another kind of adapter for this model, such as LoRA."
                        )

    @property
    def adapted(self) -> tuple[int, ...]:
        """The layers that have trained values, ascending: the adapted blocks, and the trained head."""
        return self.layers if self.head is None else (*self.layers, self.head)

    @property
    def size(self) -> int:
        """Values of a layer's flat vector."""
        return self.slots.size

    @property
    def values(self) -> int:
        """Number of trained values of all layers."""
        return sum(slot.size for layer in range(self.slots.layers) for slot in self.slots.layer(layer))

    @property
    def most_rank(self) -> int:
        """The largest number of columns that a product with an input has: the largest rank."""
        return self.form.widest.kind.width

    def kinds(self, layer: int) -> dict[str, Kind]:
        """target -> kind, for each target that the layer has. None for the trained head, which is no adapter."""
        if layer == len(self.blocks):
            return {}
        found = {target: self.form.at(layer, target) for target in self.blocks[layer].places}
        return {target: kind for target, kind in found.items() if kind is not None}

    def of_layers(self, layers: Sequence[int]) -> Layout:
        """Return the layout of only these blocks, and of the trained head, in vectors of the same size."""
        some = copy(self)
        some.blocks = [self.blocks[layer] for layer in layers]
        targets = self.form.targets
        others = {(at, name): self.form.at(layer, name) for at, layer in enumerate(layers) for name in targets}
        some.form = replace(self.form, exceptions=others)
        some.layers = tuple(at for at, layer in enumerate(layers) if layer in self.layers)
        some.lowest = sum(layer < self.lowest for layer in layers)
        if self.head is not None:
            some.head, layers = len(layers), [*layers, self.head]
        some.slots, some.fixed, some.prepared = (
            table.of_layers(layers) for table in (self.slots, self.fixed, self.prepared)
        )
        return some

    def targets(self, layer: int) -> tuple[str, ...]:
        """The names of everything that is trained in a layer."""
        return (SCORE,) if layer == self.head else tuple(self.kinds(layer))

    def parts(self, layer: int, target: str) -> dict[str, Part]:
        """The trained tensors of a projection, or of the head, by name; empty if it is not adapted."""
        if layer == self.head:
            return score.parts(self._head_shape)
        kind = self.form.at(layer, target)
        return {} if kind is None else kind.parts(target, self.blocks[layer].shape(target))

    def view(self, layer: int, flat: Any) -> dict[str, dict[str, Any]]:
        """Return target -> slot -> trained tensor, as views of a layer's flat vector, shape (size,)."""
        found: dict[str, dict[str, Any]] = {target: {} for target in self.targets(layer)}
        for name, values in self.slots.view(layer, flat).items():
            target, _, slot = name.partition(".")
            found[target][slot] = values
        return found

    def slot(self, layer: int, target: str, part: Part) -> Slot:
        """The place of a trained tensor in the layer's flat vector."""
        name = f"{target}.{part.slot}"
        return next(slot for slot in self.slots.layer(layer) if slot.name == name)

    def rate(self, ratio: float, slot: Slot) -> float:
        """The factor of the learning rate for a tensor. `ratio`: the ratio of LoRA+."""
        return self.form.kind.rate(slot.name.partition(".")[2], ratio)

    def _parts(self, layer: int) -> Iterator[tuple[str, Part]]:
        for target in self.targets(layer):
            for part in self.parts(layer, target).values():
                yield target, part

    def _value_counts(self, layer: int, name: str) -> dict[str, tuple[int, ...]]:
        """target -> shape of its "fixed" or "prepared" values (n,), if there are any."""
        kinds = self.kinds(layer).items()
        sizes = {target: getattr(kind, name)(self.blocks[layer].shape(target)) for target, kind in kinds}
        return {target: (size,) for target, size in sizes.items() if size}


def _left_out(chosen: set[int], layers: int, targets: Sequence[str]) -> dict[LayerTarget, None]:
    """The projections of the layers that are not chosen, as exceptions."""
    return {(layer, name): None for layer in range(layers) if layer not in chosen for name in targets}


def _absent(blocks: Sequence[Block], targets: Sequence[str]) -> dict[LayerTarget, None]:
    """The projections that some layers lack, as exceptions."""
    layers = enumerate(blocks)
    return {(layer, name): None for layer, block in layers for name in targets if name not in block.places}
