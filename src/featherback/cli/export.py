"""`featherback export`"""

from __future__ import annotations

import json as json_format
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from featherback.cli.options import JSONOption
from featherback.export import TARGETS
from featherback.terminal import say

if TYPE_CHECKING:
    from featherback.export.base import Target, WholeRequest
    from featherback.weights.types import TensorType


def export(
    source: Annotated[
        Path,
        typer.Argument(metavar="RUN|ADAPTER", help="A run, or an adapter in PEFT's, MLX's or GGUF's format."),
    ],
    to: Annotated[str, typer.Option(metavar="|".join(TARGETS.names), help="Where it is to go.")],
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The base model.", show_default="the one that it was trained on"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="What to write.", show_default="beside RUN|ADAPTER, named after it"
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Number format of what is written: of the factors (gguf), of the merged weights (merged, "
            "ollama), of a model that a run trained.",
            show_default="f32; the coarsest that keeps 99 % of the update; as it was trained",
        ),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the adapter calls its base, e.g. Qwen/Qwen2.5-0.5B-Instruct.",
            show_default="what its file says",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    json: JSONOption = False,
) -> None:
    """Take a trained adapter to another program. The first line of the output is what to type next.

    Example: featherback export notes-adapter --to gguf
    """
    from featherback import models
    from featherback.adapters import formats
    from featherback.export.base import Request, check_out
    from featherback.export.base_of import model_path
    from featherback.files import remove_abandoned
    from featherback.models.loader import results

    target = TARGETS[to]
    request: Request | WholeRequest
    if (trained := next((path for path in results(source) if path.exists()), None)) is not None:
        place = trained
        request = _whole(source, trained, target, _type(kind), model)
        opened = request.model
    else:
        place = formats.place_of(_found(source))
        form = formats.detect(place)
        opened = models.load(model_path(place, model))
        request = Request(formats.load(opened, place, format=form), Path(), _type(kind), base_model)
        named = place if place.name not in ("", "..") else place.absolute()
        stem = named.name if named.is_dir() else named.stem
        request = replace(request, out=named.parent / target.name(request, stem))
    if out is not None:
        request = replace(request, out=out)
    target.check(request)
    check_out(request.out, place, opened, force)
    remove_abandoned(request.out)  # it may hold the room that is needed
    done = target.write(request) if isinstance(request, Request) else target.write_whole(request)
    if json:
        say(json_format.dumps({"next": done.next, "path": str(done.path), "notes": done.notes, **done.facts}))
        return
    say(done.next)
    say(f"wrote {done.path}")
    for note in done.notes:
        say(f"note: {note}")


def _found(source: Path) -> Path:
    """The path itself, or that of the model that goes by this name, which is refused by its path."""
    from contextlib import suppress

    from featherback.errors import FeatherbackError
    from featherback.hub.locate import locate

    with suppress(FeatherbackError):
        return locate(source)
    return source


def _whole(
    source: Path, trained: Path, target: Target, kind: TensorType | None, named: str | None
) -> WholeRequest:
    """What is asked of a model that the run `source` trained."""
    from featherback import models
    from featherback.export.base import WholeRequest
    from featherback.export.base_of import base_of_run

    opened = models.load(trained)
    request = WholeRequest(opened, Path(), kind, base_of_run(source, named))
    place = source.absolute()
    return replace(request, out=place.parent / target.whole_name(request, place.name))


def _type(name: str | None) -> TensorType | None:
    """The number format of this name; FeatherbackError if there is none."""
    from featherback.errors import FeatherbackError
    from featherback.weights.quantize import quantizable
    from featherback.weights.types import TensorType

    if name is None:
        return None
    known = {kind.name.lower(): kind for kind in TensorType if quantizable(kind)}
    if name.lower() not in known:
        raise FeatherbackError(f"--type is {name!r}; choose from {', '.join(known)}.")
    return known[name.lower()]
