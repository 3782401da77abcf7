"""Arguments and options that several commands share, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from featherback.models.lora import Adapter
    from featherback.models.model import Model

_MODEL = typer.Argument(
    metavar="MODEL",
    help="A GGUF file, a Hugging Face or MLX folder, or a name: smollm2-135m, ollama:qwen2.5:0.5b (see `models`).",
)
ModelArgument = Annotated[str, _MODEL]
ModelOrNone = Annotated[str | None, _MODEL]
AdapterOption = Annotated[
    Path | None,
    typer.Option("--adapter", metavar="PATH", help="A run, or an adapter in PEFT's, MLX's or GGUF's format, to apply."),
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
    elsewhere: tuple[str, ...] = ()  # fields without a default that may be given in another way


MapOption = Annotated[tuple[str, ...] | None, FromConfig()]
SkipOption = Annotated[bool, FromConfig()]
ComputeOption = Annotated[
    str,
    FromConfig(
        help="What the matrix products multiply: bf16, fixed point of 16 bits, or float32, the most exact. "
        "auto: what the run that is named computed in; bf16 without one."
    ),
]
QuantizeOption = Annotated[str, FromConfig()]
ThreadsOption = Annotated[int | None, FromConfig()]
SequenceOption = Annotated[int | None, FromConfig()]
CutOption = Annotated[bool, FromConfig()]
JSONOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, for programs.")]

TemperatureOption = Annotated[
    float, typer.Option("--temperature", help="0 always takes the likeliest token; higher is more varied.")
]
TopPOption = Annotated[float, typer.Option("--top-p", help="Draw from the likeliest tokens that make up this share.")]
TopKOption = Annotated[int, typer.Option("--top-k", help="Draw from this many of the likeliest tokens. 0: from all.")]
SeedOption = Annotated[int, typer.Option("--seed", help="The same seed gives the same result.")]


def set_threads(threads: int | None) -> None:
    """Compute with this many threads; None: one per core."""
    from featherback.engine import kernels

    kernels.set_threads(threads or kernels.default_threads())


def open_model(name: str, adapter: Path | None = None, quantize: str = "none") -> tuple[Model, Adapter | None]:
    """The model a user named, quantised as asked, and the adapter, if any."""
    from featherback import models
    from featherback.exports import formats
    from featherback.models.hub.locate import locate

    model = models.load(locate(name), quantize)
    return model, None if adapter is None else formats.load(model, adapter)
