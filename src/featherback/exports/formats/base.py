"""The parts that all adapter formats share: names are looked up and shapes are checked before memory is allocated."""

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
from featherback.errors import FeatherbackError, excerpt, first_few
from featherback.models.adapter import Adapter
from featherback.models.architecture.layer_choice import written_layers
from featherback.models.architecture.names import hf_module
from featherback.models.form import Form, LayerTarget
from featherback.models.model import Model
from featherback.models.streams import unmap_pages
from featherback.nn.adapters.base import Kind
from featherback.nn.adapters.lora import LoRAKind
from featherback.nn.block import adaptable

Float32 = NDArray[np.float32]
PairAt = Callable[[int, str], LoRAKind | None]
"""(layer, target) -> rank, alpha and scale of a projection; None if it is not adapted."""


class Factor(NamedTuple):
    """A trained tensor of a projection."""

    place: LayerTarget
    part: str  # a key of `Kind.parts`


class StoredAdapter(ABC):
    """An adapter in an open file. Its names and shapes fit the model; its values have not been read."""

    form: Form
    _file: TensorStore

    def unmap_pages(self) -> None:
        """Unmap the file's pages. Arrays that are views of the file read it again when they are used."""
        for name in list(self._file.tensors)[:1]:
            unmap_pages(self._file.data(name))

    @abstractmethod
    def factor(self, factor: Factor) -> Float32:
        """Return a trained tensor in PEFT's layout, with the rows in Hugging Face's order."""


class Format(ABC):
    """The adapter files of one program. Each other module of this folder defines one format as `FORMAT`."""

    title: ClassVar[str]
    """A name for people, with the article: "a PEFT directory"."""

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether `path` looks like an adapter of this format."""

    @abstractmethod
    def open(self, path: Path, model: Model) -> AbstractContextManager[StoredAdapter]:
        """Open the adapter at `path`. Raises FeatherbackError, which names every tensor that does not fit `model`."""


class RunFormat(Format):
    """A format in which runs keep their adapters."""

    files: ClassVar[tuple[str, ...]]
    """The names of the files of an adapter."""

    @abstractmethod
    def save(self, adapter: Adapter, directory: Path, base_model: str | None = None) -> None:
        """Write the adapter into `directory`, which is created if needed. Each file is written atomically.

        `base_model`: the base model's name in the configuration; default: `base_model_name`. Raises FeatherbackError if
        writing fails, or if a value is not finite; the files that were there before stay unchanged.
        """

    @abstractmethod
    def remove(self, directory: Path) -> None:
        """Delete the adapter in `directory`, if one is there."""


@dataclass(frozen=True)
class Layout:
    """Names and shapes of low-rank pairs in a format: name -> factor. `transposed`: A is (in, r) and B is (r, out).

    The pairs of a stack of experts are A (E, r, in) and B (E, out, r), never transposed.
    """

    names: Mapping[str, Factor]
    transposed: bool = False

    def shape(self, model: Model, factor: Factor, rank: int) -> tuple[int, ...]:
        """The shape of the stored tensor."""
        layer, target = factor.place
        *stack, out_features, in_features = model.blocks[layer].shape(target)
        shape = (rank, in_features) if factor.part == "A" else (out_features, rank)
        return (*stack, *shape) if stack else shape[::-1] if self.transposed else shape

    def rank(self, model: Model, factor: Factor, shape: tuple[int, ...]) -> int | None:
        """The rank of a tensor with this shape; None if no rank gives the shape."""
        layer, target = factor.place
        stack = len(model.blocks[layer].shape(target)) - 2
        if len(shape) != stack + 2:
            return None
        rank = shape[stack + ((factor.part == "B") ^ (self.transposed and not stack))]
        return rank if rank > 0 and self.shape(model, factor, rank) == shape else None


def named_projections(model: Model) -> Iterator[tuple[LayerTarget, str]]:
    """Yield every projection of a model that an adapter may change, with its name in Hugging Face's model."""
    known = frozenset(adaptable(model.blocks))
    for layer, block in enumerate(model.blocks):
        for target in block.projections:
            if target in known:
                yield (layer, target), hf_module(model.naming.modules, layer, target)


def module_names(model: Model, targets: Iterable[str]) -> list[str]:
    """The last parts of the projections' names in Hugging Face's model, such as "q_proj", without repetitions."""
    return list(dict.fromkeys(hf_module(model.naming.modules, 0, target).rsplit(".", 1)[-1] for target in targets))


def ranks_of(where: str, model: Model, tensors: Mapping[str, TensorInfo], layout: Layout) -> dict[LayerTarget, int]:
    """Find the rank of every projection that has factors, from their shapes.

    `where` begins the messages: "The adapter in x". Raises MisfitError, which lists every tensor that is missing,
    unknown or of another shape.
    """
    by_factor = {factor: name for name, factor in layout.names.items()}
    found: dict[LayerTarget, int] = {}
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
                lowest = layout.shape(model, a, 1)
                problems.append(f"{by_factor[a]} has shape {first.shape}; the shape for rank 1 is {lowest}")
            found[factor.place] = rank or 0
        rank = found[factor.place]
        if rank and info.shape != (wanted := layout.shape(model, factor, rank)):
            problems.append(f"{name} has shape {info.shape}, not {wanted}")
    parts = dict.fromkeys(factor.part for factor in layout.names.values())
    wanted_names = (by_factor[Factor(place, part)] for place in found for part in parts)
    problems = [f"{name} is missing" for name in wanted_names if name not in tensors] + problems
    if problems:
        raise MisfitError(where, model, problems)
    return found


class MisfitError(FeatherbackError):
    """The tensors of an adapter do not fit the model."""

    def __init__(self, where: str, model: Model, problems: list[str], message: str = "") -> None:
        super().__init__(message or f"{where} does not fit {model.path}: {first_few(problems, '; ')}.")
        self._where, self._model, self._problems = where, model, problems

    def trained_on(self, base: str) -> FeatherbackError:
        """Return the error for an adapter that records another base model, `base`."""
        model, more = self._model, len(self._problems) - 1
        others = f", and {more} more" if more else ""
        return FeatherbackError(
            f"{self._where} was trained on {excerpt(base)} and does not fit {model.path} ({describe(model)}): "
            f"{self._problems[0]}{others}. Name the model that it was trained on."
        )


def describe(model: Model) -> str:
    """Describe a model in a few words: "qwen2, 24 layers of width 896"."""
    config = model.config
    return f"{model.family.architecture}, {config.num_hidden_layers} layers of width {config.hidden_size}"


def check_modules(
    where: str, model: Model, names: Mapping[str, TensorInfo], mark: str, modules: Iterable[str]
) -> None:  # fmt: skip
    """Raise FeatherbackError if the tensors belong to unknown modules.

    `mark`: the text after the module in a tensor's name, such as ".lora_". `modules`: the last parts of the names of
    the modules that an adapter may have.
    """
    known = list(dict.fromkeys(modules))
    stems = [name.split(mark)[0] for name in names if ".layers." in name and mark in name]
    found = dict.fromkeys(stem.rsplit(".", 1)[-1] for stem in stems)
    if not found:
        raise FeatherbackError(f"{where} adapts none of the model's modules: {', '.join(known)}.")
    if not found.keys() <= set(known):
        adapted = f"it adapts {first_few(list(found))}, but the model has {', '.join(known)}"
        raise MisfitError(
            where,
            model,
            [adapted],
            f"{where} does not fit {model.path}: {adapted}; load it with the model that it was trained on.",
        )


def form_of(
    where: str, model: Model, kinds: Mapping[LayerTarget, Kind], usual: Kind | None = None
) -> Form:  # fmt: skip
    """Make the form of an adapter with these kinds.

    `usual`: the kind of most projections; if it is None or no projection has it, the most frequent one. Raises
    FeatherbackError if `kinds` is empty, or if the layers' sizes differ so much that memory would be wasted: every
    layer takes as much memory as the largest one.
    """
    if not kinds:
        raise FeatherbackError(f"{where} holds no LoRA pair.")
    sizes: Counter[int] = Counter()
    for (layer, target), kind in kinds.items():
        parts = kind.parts(target, model.blocks[layer].shape(target)).values()
        sizes[layer] += sum(math.prod(part.shape) for part in parts)
    if len(sizes) * max(sizes.values()) > 16 * sum(sizes.values()):
        raise FeatherbackError(
            f"{where} has ranks that differ too much between layers: in memory it would take more than 16 times "
            f"the size of its values."
        )
    if usual is None or usual not in kinds.values():  # a rank that no projection has must not take memory
        usual = Counter(kinds.values()).most_common(1)[0][0]
    targets = tuple(name for name in adaptable(model.blocks) if any(name == target for _, target in kinds))
    exceptions = {
        (layer, target): kinds.get((layer, target))
        for layer in range(len(model.blocks))
        for target in targets
        if kinds.get((layer, target)) != usual
    }
    layers = written_layers(sorted({layer for layer, _ in kinds}), len(model.blocks))
    return Form(usual, targets, exceptions, layers)


def pairs_of(adapter: Adapter, format: str, title: str) -> PairAt:
    """Return the rank and scale of each projection. Raises FeatherbackError if `format` cannot hold the adapter."""
    kind = adapter.form.kind
    if format not in kind.formats or not isinstance(kind, LoRAKind):
        raise FeatherbackError(
            f"{title[0].upper()}{title[1:]} cannot hold {kind.title}; export the adapter with "
            f"{argument('to', 'merged')}, or with {argument('to', 'peft')}, which keeps {kind.title}."
        )
    return cast(PairAt, adapter.form.at)


def rescaled(values: Float32, factor: Factor, ratio: float) -> Float32:
    """Return `values` times `ratio`. Raises FeatherbackError if a product overflows float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = values * np.float32(ratio)
    if not np.isfinite(product).all():
        layer, target = factor.place
        raise FeatherbackError(
            f"The adapter's scales differ too much for a format with a single scale: {target} of layer {layer} "
            f"overflows; export with {argument('to', 'peft')}, which stores a scale for each module."
        )
    return product


def factors(adapter: Adapter) -> Iterator[tuple[Factor, Float32]]:
    """Yield every factor of an adapter in order, reading one at a time.

    Raises FeatherbackError if one holds NaN or infinity.
    """
    for layer in range(adapter.parameters.layers):
        for target in adapter.layout.targets(layer):
            for part in adapter.layout.parts(layer, target):
                factor = Factor((layer, target), part)
                yield factor, finite_factor(adapter, factor)


def finite_factor(adapter: Adapter, factor: Factor) -> Float32:
    """Return a factor of an adapter. Raises FeatherbackError if it holds NaN or infinity."""
    (layer, target), part = factor
    values = adapter.factor(layer, target, part)
    if not math.isfinite(kernels.sum_squares(values.reshape(-1))):
        name = adapter.name(layer, target, part)
        raise FeatherbackError(f"The adapter was not saved: {name} holds NaN or infinity.")
    return values
