"""What every export is asked, and what it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from featherback.core.files import check_room
from featherback.core.naming import argument, argument_is
from featherback.engine.formats.quantize import quantizable
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.exports.formats import FORMATS
from featherback.exports.formats.base import Format
from featherback.models.lora import Adapter
from featherback.models.model import Model

QUANTIZABLE = tuple(kind for kind in TensorType if quantizable(kind))
"""What weights can be stored as."""
HEADER = 1 << 20
"""Bytes, more than any adapter's header and configuration."""


@dataclass(frozen=True)
class Request:
    """An adapter, opened with its model, and where it is to go."""

    adapter: Adapter
    out: Path
    kind: TensorType | None = None  # of what is stored; None: the target's own choice
    base_model: str | None = None  # what the base is called; None: what its file says


@dataclass(frozen=True)
class WholeRequest:
    """A model that a run trained, opened, and where it is to go."""

    model: Model
    out: Path
    kind: TensorType | None = None  # of its matrices; None: as they were trained
    base: Model | None = None  # what it was trained from, if that is still there


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    next: str
    """The command line to type next."""
    notes: list[str] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Measured numbers, for programs."""


class Target(ABC):
    """A program, or a kind of file, that an adapter can be taken to."""

    help: ClassVar[str]
    """What is written, in a few words."""
    types: ClassVar[tuple[TensorType, ...]] = ()
    """What --type may be; none: it may not be named."""
    whole_types: ClassVar[tuple[TensorType, ...]] = ()
    """What it may be where a run trained the model itself."""
    format: ClassVar[Format | None] = None
    """Of the adapter that the folder holds, if that is what is written."""

    @abstractmethod
    def name(self, request: Request, stem: str) -> str:
        """The name of what is written where the user names none; `stem`: that of the run or adapter."""

    @abstractmethod
    def write(self, request: Request) -> Exported:
        """Write `request.out`, whole or not at all; FeatherbackError if that is not possible."""

    def whole_name(self, request: WholeRequest, stem: str) -> str:
        """The same for a model that a run trained; FeatherbackError if this target takes adapters only."""
        raise _adapters_only(request.model)

    def write_whole(self, request: WholeRequest) -> Exported:
        """Write `request.out`, whole or not at all; FeatherbackError if that is not possible."""
        raise _adapters_only(request.model)

    def check(self, request: Request | WholeRequest) -> None:
        """FeatherbackError if this target cannot store the request's type, or another adapter lies in its folder."""
        types = self.whole_types if isinstance(request, WholeRequest) else self.types
        if request.kind is not None and request.kind not in types:
            known = ", ".join(kind.name.lower() for kind in types)
            refusal = f"expected one of: {known}" if known else "this target stores its own; leave it out"
            raise FeatherbackError(f"{argument_is('type', request.kind.name.lower())}; {refusal}.")
        if self.format is not None:
            _check_no_other_adapter(request.out, self.format)


def _adapters_only(model: Model) -> FeatherbackError:
    return FeatherbackError(
        f"{model.path} is a whole model, trained without an adapter: programs that read models open it as it is; "
        f"{argument('to', 'merged')}, gguf or ollama write it for others."
    )


def check_adapter_room(request: Request, kind: TensorType = TensorType.F32) -> None:
    """FeatherbackError if the disk of `request.out` has no room for the adapter, its factors stored as `kind`."""
    values = request.adapter.layer_size * request.adapter.parameters.layers
    check_room(request.out, kind.block_bytes * values + HEADER)


def _check_no_other_adapter(out: Path, own: Format) -> None:
    """FeatherbackError if `out` holds an adapter in a format other than `own`: names of their files are the same."""
    for name in FORMATS.names:
        if FORMATS[name] is not own and FORMATS[name].recognises(out):
            raise FeatherbackError(
                f"{out} holds an adapter in another format ({FORMATS[name].title}), which this one would spoil; "
                f"choose another {argument('out')}."
            )


def check_not_base(out: Path, model: Model) -> None:
    """FeatherbackError if `out` is the base model, or one of its files."""
    if out.exists() and any(path.exists() and out.samefile(path) for path in (model.path, *model.files)):
        raise FeatherbackError(f"{out} is the base itself; choose another {argument('out')}.")


def check_out(out: Path, source: Path, model: Model, force: bool) -> None:
    """FeatherbackError if `out` is where the adapter or its base lies, or is there already and `force` is not set.

    In a folder that is there, files are replaced one by one and others left alone.
    """
    check_not_base(out, model)
    if out.exists() and out.resolve() == source.resolve():
        raise FeatherbackError(f"{out} is the adapter itself; choose another {argument('out')}.")
    there = any(out.iterdir()) if out.is_dir() else out.exists()
    if there and not force:
        raise FeatherbackError(
            f"{out} is there already; choose another {argument('out')}, or replace it with {argument('force', True)}."
        )
