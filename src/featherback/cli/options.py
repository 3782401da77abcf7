"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from featherback.models.adapter import Adapter
    from featherback.models.model import Model

_MODEL = typer.Argument(
    metavar="MODEL",
    help="A GGUF file, a Hugging Face or MLX folder, or a name: smollm2-135m, ollama:qwen2.5:0.5b (see `models`).",
)
ModelArgument = Annotated[str, _MODEL]
ModelOrNone = Annotated[str | None, _MODEL]
AdapterOption = Annotated[
    Path | None,
    typer.Option("--adapter", metavar="PATH", help="Adapter to apply: a run, or a PEFT, MLX or GGUF adapter."),
]


@dataclass(frozen=True)
class FromConfig:
    """Marks a command's parameter as a field of TrainConfig, which has its type, default, help and checks.

    On `**options` it stands for several fields: for `fields` and the options of the choices in `own_of` ("method"), or
    for every field and every option of the optimizers and methods.
    """

    help: str | None = None  # replaces the field's
    shown_default: str | None = None  # replaces the field's default in the help
    fields: tuple[str, ...] = ()
    own_of: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()  # fields without a default that the command line need not give
    short: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # title -> the options that --help shows


MapOption = Annotated[tuple[str, ...] | None, FromConfig()]
TableOption = Annotated[tuple[str, ...] | None, FromConfig()]
MeOption = Annotated[tuple[str, ...] | None, FromConfig()]
SkipOption = Annotated[bool, FromConfig()]
ComputeOption = Annotated[
    str,
    FromConfig(
        help="Number format of matrix products: bf16, int16 (16-bit fixed point) or fp32, the most exact. auto: the "
        "format that the adapter was trained with, or bf16 if that is unknown."
    ),
]
MemoryOption = Annotated[
    int | str | None,
    FromConfig(
        help="Memory budget, never exceeded: 96MB or 1.5GB. Weights and cache are then read from the disk as needed. "
        "least: the smallest budget that works.",
        shown_default="no limit",
    ),
]
DecodeOption = Annotated[
    str,
    typer.Option(
        "--decode",
        metavar="exact|fast",
        help="fast: round what the weights multiply to 8 bits in decoding, as llama.cpp does, where that is faster.",
    ),
]
LookupOption = Annotated[
    bool,
    typer.Option(
        "--lookup/--no-lookup",
        help="Guess tokens where the text repeats itself, and check several at once. The answer is the same.",
    ),
]
QuantizeOption = Annotated[str, FromConfig()]
ThreadsOption = Annotated[int | None, FromConfig()]
SequenceOption = Annotated[int | None, FromConfig()]
CutOption = Annotated[bool, FromConfig()]
ObjectiveOption = Annotated[
    str,
    FromConfig(
        help="What to measure: the loss of answers (next_token), or with pairs of answers that of dpo, ipo, kto, orpo, "
        "robust_dpo or simpo, with the share of pairs in which the better answer wins. An adapter with a trained head "
        "has its own objective."
    ),
]
JSONOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, for programs.")]

TemperatureOption = Annotated[
    float,
    typer.Option("--temperature", help="0 always takes the most likely token. Higher values vary the answers more."),
]
TopPOption = Annotated[
    float, typer.Option("--top-p", help="Sample from the most likely tokens up to this total probability.")
]
TopKOption = Annotated[int, typer.Option("--top-k", help="Sample from this many of the most likely tokens. 0: all.")]
MinPOption = Annotated[
    float, typer.Option("--min-p", help="Leave out tokens less likely than this share of the likeliest one's. 0: none.")
]
KVOption = Annotated[
    str,
    typer.Option(
        "--kv",
        metavar="TYPE",
        help="Type of the cached keys and values: f32, which is exact, q8_0 or q4_0. These take about a quarter and a "
        "seventh of the memory.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Random seed. The same seed gives the same result.")]

HOST = "127.0.0.1"
HostOption = Annotated[
    str, typer.Option("--host", metavar="NAME", help="Address to listen on. 0.0.0.0: all addresses of this machine.")
]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on. 0: a free one.")]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="Another host name by which clients reach the server. May be repeated.",
        show_default=False,
    ),
]


def set_threads(threads: int | None) -> None:
    """Set the number of threads; None: one per core."""
    from featherback.engine import kernels

    kernels.set_threads(threads or kernels.default_threads())


def check_adapter(model: Model, adapter: Path | None) -> None:
    """Raise FeatherbackError if the adapter at this path does not fit the model. Its values are not read."""
    from featherback.exports import formats

    if adapter is not None:
        formats.form(model, adapter)


def open_model(name: str, adapter: Path | None = None, quantize: str = "none") -> tuple[Model, Adapter | None]:
    """Open the model and the adapter, if any, that the user gave."""
    from featherback import models
    from featherback.exports import formats
    from featherback.models.hub.locate import locate

    model = models.load(locate(name), quantize)
    return model, None if adapter is None else formats.load(model, adapter)
