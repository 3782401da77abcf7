"""Arguments and options that several commands share, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from featherback.adapters.lora import LoRA
    from featherback.models.model import Model

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A GGUF file, a Hugging Face folder, or the name of a fetched model (smollm2-135m).",
    ),
]
AdapterOption = Annotated[
    Path | None,
    typer.Option("--adapter", metavar="DIR", help="A run or another PEFT adapter directory to apply."),
]


@dataclass(frozen=True)
class FromConfig:
    """Marks a command's parameter that is a field of TrainConfig: its type, default, help and checks are said there.

    On `**options`: the `fields` named, with the options of the choices in `own_of` ("method"), or every field, with
    the options of optimisers and methods.
    """

    help: str | None = None  # in place of the field's
    fields: tuple[str, ...] = ()
    own_of: tuple[str, ...] = ()


ComputeOption = Annotated[str, FromConfig()]
ThreadsOption = Annotated[int | None, FromConfig()]
SequenceOption = Annotated[int, FromConfig()]
JSONOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, for programs.")]

TemperatureOption = Annotated[
    float, typer.Option("--temperature", help="0 always takes the likeliest token; higher is more varied.")
]
TopPOption = Annotated[
    float, typer.Option("--top-p", help="Draw from the likeliest tokens that make up this share.")
]
TopKOption = Annotated[
    int, typer.Option("--top-k", help="Draw from this many of the likeliest tokens. 0: from all.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="The same seed gives the same result.")]


def set_threads(threads: int | None) -> None:
    """Compute with this many threads; None: one per core."""
    from featherback import kernels

    kernels.set_threads(threads or kernels.default_threads())


def open_model(name: str, adapter: Path | None = None) -> tuple[Model, LoRA | None]:
    """The model a user named, and the adapter, if any."""
    from featherback import models
    from featherback.adapters import peft
    from featherback.hub.locate import locate

    model = models.load(locate(name))
    return model, None if adapter is None else peft.load(model, adapter)
