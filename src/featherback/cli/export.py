"""`featherback export`"""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from featherback.cli.options import JSONOption
from featherback.core.terminal import say
from featherback.exports import FORMATS

WITHOUT_BUDGET = "reads and writes one tensor at a time"
"""Why the command has no memory budget, as docs/memory.md says it."""


def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|ADAPTER", help="A run, or an adapter in PEFT's, MLX's or GGUF's format.")
    ],
    to: Annotated[str, typer.Option(metavar="|".join(FORMATS.names), help="Format to export to.")],
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Base model.", show_default="the model it was trained on")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="PATH", help="File or folder to write.", show_default="beside RUN|ADAPTER")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Number format of the result, such as q8_0. For gguf the default is f32. For merged weights it is the "
            "smallest format that keeps 99 % of the update. A model from --train full keeps its format.",
        ),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the base model to write into the adapter, such as Qwen/Qwen2.5-0.5B-Instruct.",
            show_default="the name in the model's file",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file or folder.")] = False,
    json: JSONOption = False,
) -> None:
    """Export a trained adapter for Ollama, llama.cpp, PEFT and others.

    The first line of the output is the command to type next.

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
