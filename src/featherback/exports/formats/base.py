"""The interface of formats: what each program reads and writes, and the checks that all formats share.

Names are looked up and shapes are checked before memory is allocated.
"""

from __future__ import annotations

import math
import re
from abc import ABC
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.core.files import check_free_space
from featherback.core.naming import argument, argument_is
from featherback.core.terminal import quoted
from featherback.engine import kernels
from featherback.engine.formats.quantize import quantizable
from featherback.engine.formats.split import part_names
from featherback.engine.formats.store import TensorStore, floats
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.errors import FeatherbackError, excerpt, first_few
from featherback.models.adapter import Adapter
from featherback.models.architecture.layer_choice import written_layers
from featherback.models.architecture.names import hf_module
from featherback.models.converted import NONE
from featherback.models.form import Form, LayerTarget
from featherback.models.model import Model
from featherback.models.streams import unmap_pages
from featherback.nn.adapters.base import Kind
from featherback.nn.block import adaptable

Float32 = NDArray[np.float32]
QUANTIZABLE = tuple(kind for kind in TensorType if quantizable(kind))
"""The types in which weights can be stored."""
LAYER = re.compile(r"\.layers?\.")
"""Precedes the number of a layer in the name of a module."""
HEADER = 1 << 20
"""Room for an adapter's header and configuration, in bytes: more than any needs."""


class Factor(NamedTuple):
    """A trained tensor of a projection."""

    place: LayerTarget
    part: str  # a key of `Kind.parts`


class StoredAdapter:
    """An adapter in an open file. Its names and shapes fit the model; its values have not been read."""

    def __init__(self, form: Form, file: TensorStore, names: Mapping[str, Factor]) -> None:
        self.form, self._file = form, file
        self._names = {factor: name for name, factor in names.items()}

    def unmap_pages(self) -> None:
        """Unmap the file's pages. Arrays that are views of the file read it again when they are used."""
        for name in list(self._file.tensors)[:1]:
            unmap_pages(self._file.data(name))

    def factor(self, factor: Factor) -> Float32:
        """Return a trained tensor in PEFT's layout, with the rows in Hugging Face's order."""
        return floats(self._file, self._names[factor])


@dataclass(frozen=True)
class Request:
    """An adapter to export, opened with its model, and the destination."""

    adapter: Adapter
    out: Path
    kind: TensorType | None = None  # type of the stored tensors; None: the format chooses
    base_model: str | None = None  # the base model's name; None: from its file
    pooling: str | None = None  # how the run pools embeddings; None: the model's own way

    def check_room(self, kind: TensorType = TensorType.F32) -> None:
        """Raise FeatherbackError if the disk of `out` has no room for the adapter with factors of type `kind`."""
        values = self.adapter.layer_size * self.adapter.parameters.layers
        check_free_space(self.out, kind.block_bytes * values + HEADER)

    def try_out(self) -> str:
        """The command that lets the model answer with the adapter, or classify if the adapter ends in a head."""
        model = self.adapter.model
        options = (*(() if model.quantize == NONE else ("--quantize", model.quantize)), "--adapter", self.out)
        if self.adapter.outputs:
            return quoted("featherback", "classify", model.path, *options, "TEXT")
        return try_out(model.path, *options)


@dataclass(frozen=True)
class WholeRequest:
    """A trained model to export, opened, and the destination."""

    model: Model
    out: Path
    kind: TensorType | None = None  # type of the matrices; None: as they were trained
    base: Model | None = None  # the model that training began with, if it still exists
    pooling: str | None = None  # as in Request

    @property
    def suffix(self) -> str:
        """The part of a default file name that names the type."""
        return "" if self.kind is None else f"-{self.kind.name.lower()}"


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    path: Path
    next: str
    """The command to type next."""
    notes: list[str] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Measured figures, for programs."""


class Format(ABC):
    """What one program, or kind of file, reads and writes. Each other module of this folder defines one as `FORMAT`.

    A format that Featherback reads has a `title`; one that it exports to has a `help`.
    """

    title: ClassVar[str] = ""
    """A name for people, with the article: "a PEFT directory"."""
    files: ClassVar[tuple[str, ...]] = ()
    """The names of the files of an adapter that is a folder, those with its values first."""
    help: ClassVar[str]
    """The result of an export in a few words, for the help."""
    types: ClassVar[tuple[TensorType, ...]] = ()
    """The values of --type; empty: --type is rejected."""
    whole_types: ClassVar[tuple[TensorType, ...]] = ()
    """The values of --type for a run that trained a whole model."""
    any_family: ClassVar[bool] = False
    """Whether it also stores adapters of families that no other program has."""
    holds_heads: ClassVar[bool] = False
    """Whether it stores the trained head of a classifier or a reward model."""

    def recognises(self, path: Path) -> bool:
        """Whether `path` looks like an adapter of this format."""
        return bool(self.files) and (path / self.files[0]).is_file()

    def open(self, path: Path, model: Model) -> AbstractContextManager[StoredAdapter]:
        """Open the adapter at `path`. Raises FeatherbackError, which names every tensor that does not fit `model`."""
        raise NotImplementedError

    def save(self, adapter: Adapter, path: Path, base_model: str | None = None) -> None:
        """Write the adapter to `path`, a file or a folder, which is created if needed. Files are written atomically.

        `base_model`: the base model's name in the file; default: `base_model_name`. Raises FeatherbackError if writing
        fails, or if a value is not finite; the files that were there before stay unchanged.
        """
        raise NotImplementedError

    def remove(self, folder: Path) -> None:
        """Delete the adapter in `folder`, if one is there."""
        for name in self.files:
            (folder / name).unlink(missing_ok=True)

    def name(self, request: Request, stem: str) -> str:
        """The default name of the result. `stem`: the name of the run or adapter."""
        raise NotImplementedError

    def write(self, request: Request) -> Exported:
        """Write `request.out` atomically. Raises FeatherbackError if that is not possible."""
        raise NotImplementedError

    def whole_name(self, request: WholeRequest, stem: str) -> str:
        """The default name for a trained model. Raises FeatherbackError if this format only holds adapters."""
        raise _adapters_only(request.model)

    def write_whole(self, request: WholeRequest) -> Exported:
        """Write the trained model to `request.out` atomically. Raises FeatherbackError if that is not possible."""
        raise _adapters_only(request.model)

    def check(self, request: Request | WholeRequest) -> None:
        """Raise FeatherbackError if the format cannot store the request's model or type, or would damage an adapter."""
        model = request.model if isinstance(request, WholeRequest) else request.adapter.model
        if isinstance(request, Request) and (kind := request.adapter.form.kind).is_branch:
            raise FeatherbackError(
                f"{kind.title} is a layer of its own: it cannot be merged into weights, and no other program has it. "
                f"Use this adapter with featherback generate, chat or evaluate."
            )
        if model.family.folders_only and not self.any_family:
            raise FeatherbackError(
                f"{model.family.called} cannot be exported as {self.help}, because {model.family.folders_only}; use "
                f"{argument('to', 'peft')}."
            )
        if not isinstance(request, WholeRequest) and request.adapter.outputs and not self.holds_heads:
            raise FeatherbackError(
                f"The adapter ends in a trained head, which only a PEFT directory can hold; use "
                f"{argument('to', 'peft')}."
            )
        types = self.whole_types if isinstance(request, WholeRequest) else self.types
        if request.kind is not None and request.kind not in types:
            known = ", ".join(kind.name.lower() for kind in types)
            refusal = (
                f"expected one of: {known}" if known else f"this target stores one type only; remove {argument('type')}"
            )
            raise FeatherbackError(f"{argument_is('type', request.kind.name.lower())}; {refusal}.")


def _adapters_only(model: Model) -> FeatherbackError:
    return FeatherbackError(
        f"{model.path} is a whole model, not an adapter. Programs that read models can open it as it is; to convert "
        f"it, use {argument('to', 'merged')}, {argument('to', 'gguf')} or {argument('to', 'ollama')}."
    )


def try_out(model: Path, *options: object) -> str:
    """The command that lets `model` answer, with `options`; or that inspects it, if it has no tokenizer."""
    from featherback.data.tokenizers.loader import check_tokenizer  # only here: training does not need it

    try:
        check_tokenizer(model)
    except FeatherbackError:
        return quoted("featherback", "inspect", model)
    return quoted("featherback", "generate", model, *options, "--prompt", "Hello")


def first_part(model: Model) -> Path:
    """The model's file for other programs: of a split GGUF, the first part."""
    return model.path.with_name(part_names(model.path.name)[0])


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
    stems = [name.split(mark)[0] for name in names if LAYER.search(name) and mark in name]
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
