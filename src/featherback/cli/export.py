"""`featherback export`"""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from featherback.cli.options import JSONOption
from featherback.export import TARGETS
from featherback.terminal import quoted, say

if TYPE_CHECKING:
    from featherback.export.base import Target
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
            help="Number format of what is written: of the factors (gguf), of the merged weights (merged, ollama).",
            show_default="f32, and the base's",
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
    from featherback.private import check_run

    target = TARGETS[to]
    check_run(source)
    if (trained := next((path for path in results(source) if path.exists()), None)) is not None:
        _model(trained, target, _type(kind), out, force, json)
        return
    place = formats.place_of(source)
    form = formats.detect(place)
    opened = models.load(model_path(place, model))
    adapter = formats.load(opened, place, format=form)
    request = Request(adapter, out or Path(), _type(kind), base_model)
    if out is None:
        named = place if place.name not in ("", "..") else place.absolute()
        stem = named.name if named.is_dir() else named.stem
        request = Request(adapter, named.parent / target.name(request, stem), request.kind, base_model)
    target.check(request)
    check_out(request.out, place, opened, force)
    remove_abandoned(request.out)  # it may hold the room that is needed
    done = target.write(request)
    if json:
        say(json_format.dumps({"next": done.next, "path": str(done.path), "notes": done.notes, **done.facts}))
        return
    say(done.next)
    say(f"wrote {done.path}")
    for note in done.notes:
        say(f"note: {note}")


def _model(
    trained: Path, target: Target, kind: TensorType | None, out: Path | None, force: bool, json: bool
) -> None:
    """Write a model that a run trained in another number format: there is no adapter to be taken anywhere."""
    from featherback import models
    from featherback.errors import FeatherbackError
    from featherback.export.base import check_out
    from featherback.whole.copy import copy_as

    if target is not TARGETS["merged"] or kind is None:
        raise FeatherbackError(
            f"{trained} is a whole model, which others open as it is; --to merged --type q8_0 writes it in another "
            f"number format."
        )
    stem = f"{trained.parent.absolute().name}-{kind.name.lower()}"
    out = out or trained.parent.absolute().parent / f"{stem}{trained.suffix}"
    opened = models.load(trained)
    check_out(out, trained, opened, force)
    copy_as(opened, out, kind)
    following = quoted("featherback", "generate", out, "--prompt", "Hello")
    if json:
        say(json_format.dumps({"next": following, "path": str(out), "notes": []}))
        return
    say(following)
    say(f"wrote {out}")


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
