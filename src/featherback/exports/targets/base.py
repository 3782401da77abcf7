"""The interface of an export target: requests, results, and checks that all targets share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from featherback.core.files import check_free_space
from featherback.core.naming import argument, argument_is
from featherback.engine.formats.quantize import quantizable
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.exports.formats import FORMATS
from featherback.exports.formats.base import Format
from featherback.models.adapter import Adapter
from featherback.models.model import Model

QUANTIZABLE = tuple(kind for kind in TensorType if quantizable(kind))
"""The types in which weights can be stored."""
HEADER = 1 << 20
"""Room for an adapter's header and configuration, in bytes: more than any needs."""


@dataclass(frozen=True)
class Request:
    """An adapter to export, opened with its model, and the destination."""

    adapter: Adapter
    out: Path
    kind: TensorType | None = None  # type of the stored tensors; None: the target chooses
    base_model: str | None = None  # the base model's name; None: from its file


@dataclass(frozen=True)
class WholeRequest:
    """A trained model to export, opened, and the destination."""

    model: Model
    out: Path
    kind: TensorType | None = None  # type of the matrices; None: as they were trained
    base: Model | None = None  # the model that training began with, if it still exists


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    path: Path
    next: str
    """The command to type next."""
    notes: list[str] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Measured figures, for programs."""


class Target(ABC):
    """A program, or a kind of file, for which adapters are exported."""

    help: ClassVar[str]
    """The result in a few words, for the help."""
    types: ClassVar[tuple[TensorType, ...]] = ()
    """The values of --type; empty: --type is rejected."""
    whole_types: ClassVar[tuple[TensorType, ...]] = ()
    """The values of --type for a run that trained a whole model."""
    format: ClassVar[Format | None] = None
    """The format of the adapter in the written folder; None if the target writes something else."""

    any_family: ClassVar[bool] = False
    """Whether it also stores adapters of families that no other program has."""

    holds_heads: ClassVar[bool] = False
    """Whether it stores the trained head of a classifier or a reward model."""

    @abstractmethod
    def name(self, request: Request, stem: str) -> str:
        """The default name of the result. `stem`: the name of the run or adapter."""

    @abstractmethod
    def write(self, request: Request) -> Exported:
        """Write `request.out` atomically. Raises FeatherbackError if that is not possible."""

    def whole_name(self, request: WholeRequest, stem: str) -> str:
        """The default name for a trained model. Raises FeatherbackError if this target only exports adapters."""
        raise _adapters_only(request.model)

    def write_whole(self, request: WholeRequest) -> Exported:
        """Write the trained model to `request.out` atomically. Raises FeatherbackError if that is not possible."""
        raise _adapters_only(request.model)

    def check(self, request: Request | WholeRequest) -> None:
        """Raise FeatherbackError if the target cannot store the request's model or type, or would damage an adapter."""
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
        if self.format is not None:
            _check_no_other_adapter(request.out, self.format)


def _adapters_only(model: Model) -> FeatherbackError:
    return FeatherbackError(
        f"{model.path} is a whole model, not an adapter. Programs that read models can open it as it is; to convert "
        f"it, use {argument('to', 'merged')}, {argument('to', 'gguf')} or {argument('to', 'ollama')}."
    )


def check_adapter_room(request: Request, kind: TensorType = TensorType.F32) -> None:
    """Raise FeatherbackError if the disk of `request.out` has no room for the adapter with factors of type `kind`."""
    values = request.adapter.layer_size * request.adapter.parameters.layers
    check_free_space(request.out, kind.block_bytes * values + HEADER)


def _check_no_other_adapter(out: Path, own: Format) -> None:
    """Raise FeatherbackError if `out` holds an adapter in another format than `own`: their file names overlap."""
    for name in FORMATS.names:
        if FORMATS[name] is not own and FORMATS[name].recognises(out):
            raise FeatherbackError(
                f"{out} holds an adapter in another format ({FORMATS[name].title}), which this one would damage; "
                f"choose another {argument('out')}."
            )


def check_not_base(out: Path, model: Model) -> None:
    """Raise FeatherbackError if `out` is the base model or one of its files."""
    if out.exists() and any(path.exists() and out.samefile(path) for path in (model.path, *model.files)):
        raise FeatherbackError(f"{out} is the base model itself; choose another {argument('out')}.")


def check_out(out: Path, source: Path | None, model: Model, force: bool) -> None:
    """Raise FeatherbackError if `out` is the adapter or its base model, or exists and `force` is not set.

    `source`: the adapter's place; None: it is in memory. In an existing folder, the export replaces its own files one
    by one and leaves others unchanged.
    """
    check_not_base(out, model)
    if source is not None and out.exists() and out.resolve() == source.resolve():
        raise FeatherbackError(f"{out} is the adapter itself; choose another {argument('out')}.")
    there = any(out.iterdir()) if out.is_dir() else out.exists()
    if there and not force:
        raise FeatherbackError(
            f"{out} already exists; choose another {argument('out')}, or replace it with {argument('force', True)}."
        )
