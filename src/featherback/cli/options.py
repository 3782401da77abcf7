"""Arguments and options that several commands share, and how they are read."""

from __future__ import annotations

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


def _compute(name: str) -> str:
    from featherback.errors import FeatherbackError
    from featherback.training.config import COMPUTE

    if name not in COMPUTE:
        raise FeatherbackError(f"--compute is {name!r}; choose from {', '.join(COMPUTE)}.")
    return name


ComputeOption = Annotated[
    str,
    typer.Option(
        "--compute",
        metavar="bf16|fp32",
        callback=_compute,
        help="Precision of the matrix products' inputs.",
    ),
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", help="Threads to compute with. Default: one a core.")
]
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
    """Compute with so many threads; None: one a core."""
    from featherback import kernels
    from featherback.errors import FeatherbackError

    if threads is not None and threads < 1:
        raise FeatherbackError(f"--threads is {threads}; it must be at least 1.")
    kernels.set_threads(threads or kernels.default_threads())


def open_model(name: str, adapter: Path | None = None) -> tuple[Model, LoRA | None]:
    """The model a user named, and the adapter, if any."""
    from featherback import models
    from featherback.adapters import peft
    from featherback.hub.locate import locate

    model = models.load(locate(name))
    return model, None if adapter is None else peft.load(model, adapter)
