"""What every adapter format shares: names that are looked up, shapes that are checked before anything takes memory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.adapters.lora import Form, LoRA, Pair, Place
from featherback.architecture.names import hf_module
from featherback.errors import FeatherbackError, shown, some
from featherback.layers.block import adaptable
from featherback.models.model import Model
from featherback.models.streams import give_back
from featherback.naming import argument
from featherback.weights.store import TensorStore
from featherback.weights.types import TensorInfo

Float32 = NDArray[np.float32]

LEAST_ALPHA, MOST_ALPHA = 1e-30, 1e30
"""Far beyond any use, and float32 still holds them."""


class Factor(NamedTuple):
    """One factor of a projection: A (rank, in), B (out, rank), or DoRA's m (out,)."""

    place: Place
    part: str  # of `lora.PARTS`


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
        """A (rank, in), B (out, rank) or m (out,) of a projection, its rows in Hugging Face's order."""


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
    """How a format names and lays out the factors of a model: name -> factor; `transposed`: A (in, r), B (r, out)."""

    names: Mapping[str, Factor]
    transposed: bool = False

    def shape(self, model: Model, factor: Factor, rank: int) -> tuple[int, ...]:
        """Of the stored tensor."""
        layer, target = factor.place
        out_features, in_features = model.blocks[layer].projections[target]
        if factor.part == "m":
            return (out_features,)
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


def ranks_of(
    where: str,
    model: Model,
    tensors: Mapping[str, TensorInfo],
    layout: Layout,
    stated: Mapping[Place, int] | None = None,
) -> dict[Place, int]:
    """The rank of every projection that has factors: as `stated`, which must be all of them, or as the shapes say.

    FeatherbackError listing every tensor that is missing, unknown or of another shape. `where`: "The adapter in x".
    """
    by_factor = {factor: name for name, factor in layout.names.items()}
    found: dict[Place, int] = dict(stated or {})
    problems: list[str] = []
    for name, info in tensors.items():
        factor = layout.names.get(name)
        if factor is None:
            problems.append(f"{name} is not a LoRA tensor of this model")
            continue
        if factor.place not in found and stated is not None:
            problems.append(f"{name} is of a module that its configuration leaves out")
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
    known = adaptable(model.blocks)
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
    where: str, model: Model, pairs: Mapping[Place, Pair], usual: Pair | None = None, rslora: bool = False,
    dora: bool = False,
) -> Form:  # fmt: skip
    """The form of an adapter that has these pairs, most of them `usual` (None, or one that none has: the commonest).

    FeatherbackError if there is none, or if their sizes differ so much that holding them would take far more than they
    hold: a layer takes as much memory as the largest.
    """
    if not pairs:
        raise FeatherbackError(f"{where} holds no LoRA pair.")
    sizes: Counter[int] = Counter()
    for (layer, target), pair in pairs.items():
        sizes[layer] += pair.rank * sum(model.blocks[layer].projections[target])
    if len(sizes) * max(sizes.values()) > 16 * sum(sizes.values()):
        raise FeatherbackError(f"{where} has ranks that differ too much between layers to be one adapter.")
    if usual is None or usual not in pairs.values():  # a rank that no projection has must not take memory
        usual = Counter(pairs.values()).most_common(1)[0][0]
    targets = tuple(name for name in adaptable(model.blocks) if any(name == target for _, target in pairs))
    exceptions = {
        (layer, target): pairs.get((layer, target))
        for layer in range(len(model.blocks))
        for target in targets
        if pairs.get((layer, target)) != usual
    }
    return Form(usual.rank, usual.alpha, targets, rslora, exceptions, dora)


def check_alpha(where: str, name: str, alpha: object) -> float:
    """A number that an adapter may be scaled by; FeatherbackError for anything else."""
    if type(alpha) not in (int, float) or not LEAST_ALPHA <= alpha <= MOST_ALPHA:  # type: ignore[operator]
        raise FeatherbackError(
            f"{where} has {name} {shown(alpha)}; it must be a number from {LEAST_ALPHA:g} to {MOST_ALPHA:g}."
        )
    return float(alpha)  # type: ignore[arg-type]


def check_plain(adapter: LoRA, title: str) -> None:
    """FeatherbackError for a DoRA adapter, which the format `title` has no place for."""
    if adapter.form.dora:
        raise FeatherbackError(
            f"The adapter is a DoRA, which {title} cannot hold; export it "
            f"{argument('to', 'merged')}, or {argument('to', 'peft')}, which keeps it."
        )


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


def factors(adapter: LoRA) -> Iterator[tuple[Factor, Float32]]:
    """Every factor of an adapter in order, a layer at a time; FeatherbackError if one holds NaN or infinity."""
    for layer in range(adapter.parameters.layers):
        state = adapter.layer_state(layer)
        for target in adapter.layout.adapted(layer):
            for part in adapter.form.parts:
                name = adapter.name(layer, target, part)
                if not math.isfinite(kernels.sum_squares(state[name].reshape(-1))):
                    raise FeatherbackError(f"The adapter is not saved: {name} holds NaN or infinity.")
                yield Factor((layer, target), part), state[name]
