"""`featherback export`"""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from featherback.cli.options import JSONOption
from featherback.core.terminal import say
from featherback.exports.targets import TARGETS


def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|ADAPTER", help="A run, or an adapter in PEFT's, MLX's or GGUF's format.")
    ],
    to: Annotated[str, typer.Option(metavar="|".join(TARGETS.names), help="Where it is to go.")],
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The base model.", show_default="the one that it was trained on")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="What to write.", show_default="beside RUN|ADAPTER, named after it"),
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
    from featherback.runs.exporting import export as exported

    done = exported(source, to, model, out, kind, base_model, force)
    if json:
        say(json_format.dumps({"next": done.next, "path": str(done.path), "notes": done.notes, **done.facts}))
        return
    say(done.next)
    say(f"wrote {done.path}")
    for note in done.notes:
        say(f"note: {note}")
