"""What every adapter format shares: names that are looked up, shapes that are checked before anything takes memory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from featherback.core.naming import argument
from featherback.engine import kernels
from featherback.engine.formats.store import TensorStore
from featherback.engine.formats.types import TensorInfo
from featherback.errors import FeatherbackError, shown, some
from featherback.models.architecture.names import hf_module
from featherback.models.form import Form, Place
from featherback.models.lora import Adapter
from featherback.models.model import Model
from featherback.models.streams import give_back
from featherback.nn.adapters.base import Kind
from featherback.nn.adapters.lora import LoRAKind
from featherback.nn.block import adaptable

Float32 = NDArray[np.float32]
PairAt = Callable[[int, str], LoRAKind | None]
"""Rank, alpha and scale of a projection."""


class Factor(NamedTuple):
    """One trained tensor of a projection."""

    place: Place
    part: str  # of `Kind.parts`


class StoredAdapter(ABC):
    """An adapter in a file whose names and shapes fit the model. No values were read yet."""

    form: Form
    _file: TensorStore

    def give_back(self) -> None:
        """Give back the memory of what was read of the file; arrays that are views of it are read anew if touched."""
        for name in list(self._file.tensors)[:1]:
            give_back(self._file.data(name))

    @abstractmethod
    def factor(self, factor: Factor) -> Float32:
        """A trained tensor as PEFT stores it, its rows in Hugging Face's order."""


class Format(ABC):
    """How one program keeps adapters. Each other module of this folder is one format and holds it as `FORMAT`."""

    title: ClassVar[str]
    """What it is, for people: "a PEFT directory"."""

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether an adapter of this format seems to be at `path`."""

    @abstractmethod
    def open(self, path: Path, model: Model) -> AbstractContextManager[StoredAdapter]:
        """The adapter at `path`; FeatherbackError naming everything in which it does not fit `model`."""


@dataclass(frozen=True)
class Layout:
    """How a format of low-rank pairs names and lays them out: name -> factor; `transposed`: A (in, r), B (r, out)."""

    names: Mapping[str, Factor]
    transposed: bool = False

    def shape(self, model: Model, factor: Factor, rank: int) -> tuple[int, ...]:
        """Of the stored tensor."""
        layer, target = factor.place
        out_features, in_features = model.blocks[layer].projections[target]
        shape = (rank, in_features) if factor.part == "A" else (out_features, rank)
        return shape[::-1] if self.transposed else shape

    def rank(self, model: Model, factor: Factor, shape: tuple[int, ...]) -> int | None:
        """The rank at which a tensor of this factor has this shape; None if at none."""
        if len(shape) != 2:
            return None
        rank = shape[(factor.part == "B") ^ self.transposed]
        return rank if rank > 0 and self.shape(model, factor, rank) == shape else None


def places(model: Model) -> Iterator[tuple[Place, str]]:
    """Every projection of a model, and Hugging Face's name for it."""
    for layer, block in enumerate(model.blocks):
        for target in block.projections:
            yield (layer, target), hf_module(model.naming.modules, layer, target)


def module_names(model: Model, targets: Iterable[str]) -> list[str]:
    """What Hugging Face calls projections, each within its part of a layer."""
    return list(dict.fromkeys(hf_module(model.naming.modules, 0, target).rsplit(".", 1)[-1] for target in targets))


def ranks_of(where: str, model: Model, tensors: Mapping[str, TensorInfo], layout: Layout) -> dict[Place, int]:
    """The rank of every projection that has factors, as the shapes say.

    FeatherbackError listing every tensor that is missing, unknown or of another shape. `where`: "The adapter in x".
    """
    by_factor = {factor: name for name, factor in layout.names.items()}
    found: dict[Place, int] = {}
    problems: list[str] = []
    for name, info in tensors.items():
        factor = layout.names.get(name)
        if factor is None:
            problems.append(f"{name} is not a LoRA tensor of this model")
            continue
        if factor.place not in found:
            a = Factor(factor.place, "A")
            first = tensors.get(by_factor[a])
            rank = None if first is None else layout.rank(model, a, first.shape)
            if first is not None and rank is None:
                problems.append(f"{by_factor[a]} is {first.shape}, not {layout.shape(model, a, 1)} at rank 1")
            found[factor.place] = rank or 0
        rank = found[factor.place]
        if rank and info.shape != (wanted := layout.shape(model, factor, rank)):
            problems.append(f"{name} is {info.shape}, not {wanted}")
    parts = dict.fromkeys(factor.part for factor in layout.names.values())
    wanted_names = (by_factor[Factor(place, part)] for place in found for part in parts)
    problems = [f"{name} is missing" for name in wanted_names if name not in tensors] + problems
    if problems:
        raise MisfitError(where, model, problems)
    return found


class MisfitError(FeatherbackError):
    """An adapter that does not fit a model, in whatever tensors."""

    def __init__(self, where: str, model: Model, problems: list[str], message: str = "") -> None:
        super().__init__(message or f"{where} does not fit {model.path}: {some(problems, '; ')}.")
        self._where, self._model, self._problems = where, model, problems

    def trained_on(self, base: str) -> FeatherbackError:
        """The same of an adapter that says that it was trained on `base`, which is another model."""
        model, more = self._model, len(self._problems) - 1
        others = f", and {more} more" if more else ""
        return FeatherbackError(
            f"{self._where} was trained on {shown(base)} and does not fit {model.path}, a {describe(model)}: "
            f"{self._problems[0]}{others}. Name the model that it was trained on."
        )


def describe(model: Model) -> str:
    """What a model is, in a few words: "qwen2 of 24 layers, width 896"."""
    config = model.config
    return f"{model.family.architecture} of {config.num_hidden_layers} layers, width {config.hidden_size}"


def check_modules(where: str, model: Model, names: Mapping[str, TensorInfo], mark: str) -> None:
    """FeatherbackError if the tensors, whose names continue after a module's with `mark`, are of none that is known."""
    known = module_names(model, adaptable(model.blocks))
    stems = [name.split(mark)[0] for name in names if ".layers." in name and mark in name]
    found = dict.fromkeys(stem.rsplit(".", 1)[-1] for stem in stems)
    if not found:
        raise FeatherbackError(f"{where} adapts none of {', '.join(known)}.")
    if not found.keys() <= set(known):
        adapted = f"it adapts {some(list(found))}, and the model has {', '.join(known)}"
        raise MisfitError(
            where,
            model,
            [adapted],
            f"{where} does not fit {model.path}: it adapts {some(list(found))}, and the model has "
            f"{', '.join(known)}; load it with the model that it was trained on.",
        )


def form_of(
    where: str, model: Model, kinds: Mapping[Place, Kind], usual: Kind | None = None
) -> Form:  # fmt: skip
    """The form of an adapter that has these kinds, most of them `usual` (None, or one that none has: the commonest).

    FeatherbackError if there is none, or if their sizes differ so much that holding them would take far more than they
    hold: a layer takes as much memory as the largest.
    """
    if not kinds:
        raise FeatherbackError(f"{where} holds no LoRA pair.")
    sizes: Counter[int] = Counter()
    for (layer, target), kind in kinds.items():
        parts = kind.parts(target, model.blocks[layer].projections[target]).values()
        sizes[layer] += sum(math.prod(part.shape) for part in parts)
    if len(sizes) * max(sizes.values()) > 16 * sum(sizes.values()):
        raise FeatherbackError(f"{where} has ranks that differ too much between layers to be one adapter.")
    if usual is None or usual not in kinds.values():  # a rank that no projection has must not take memory
        usual = Counter(kinds.values()).most_common(1)[0][0]
    targets = tuple(name for name in adaptable(model.blocks) if any(name == target for _, target in kinds))
    exceptions = {
        (layer, target): kinds.get((layer, target))
        for layer in range(len(model.blocks))
        for target in targets
        if kinds.get((layer, target)) != usual
    }
    return Form(usual, targets, exceptions)


def pairs_of(adapter: Adapter, format: str, title: str) -> PairAt:
    """Rank and scale of each projection; FeatherbackError for an adapter that `format` has no place for."""
    kind = adapter.form.kind
    if format not in kind.formats or not isinstance(kind, LoRAKind):
        raise FeatherbackError(
            f"The adapter is a{'n' * (kind.title[0] in 'AEIO')} {kind.title}, which {title} cannot hold; export it "
            f"{argument('to', 'merged')}, or {argument('to', 'peft')}, which keeps it."
        )
    return cast(PairAt, adapter.form.at)


def rescaled(values: Float32, factor: Factor, ratio: float) -> Float32:
    """`values` times `ratio`; FeatherbackError if float32 cannot hold one of the products."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = values * np.float32(ratio)
    if not np.isfinite(product).all():
        layer, target = factor.place
        raise FeatherbackError(
            f"The scales of the adapter differ too much to be written as one: {target} of layer {layer} overflows; "
            f"export it as PEFT, which keeps them apart."
        )
    return product


def factors(adapter: Adapter) -> Iterator[tuple[Factor, Float32]]:
    """Every factor of an adapter in order, a layer at a time; FeatherbackError if one holds NaN or infinity."""
    for layer in range(adapter.parameters.layers):
        state = adapter.layer_state(layer)
        for target in adapter.layout.kinds(layer):
            for part in adapter.layout.parts(layer, target):
                name = adapter.name(layer, target, part)
                if not math.isfinite(kernels.sum_squares(state[name].reshape(-1))):
                    raise FeatherbackError(f"The adapter is not saved: {name} holds NaN or infinity.")
                yield Factor((layer, target), part), state[name]
