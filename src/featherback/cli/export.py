"""`featherback export`"""

from __future__ import annotations

import json as json_format
from pathlib import Path

from featherback.cli.options import JSON
from featherback.core.options import option
from featherback.core.terminal import say
from featherback.exports import FORMATS

WITHOUT_BUDGET = "reads and writes one tensor at a time"
"""Why the command has no memory budget, as docs/memory.md says it."""


def export(
    source: Path = option(
        positional=True, metavar="RUN|ADAPTER", help="A run, or an adapter in PEFT's, MLX's or GGUF's format."
    ),
    to: str = option(metavar="|".join(FORMATS.names), help="Format to export to."),
    model: str | None = option(None, metavar="MODEL", help="Base model.", shown_default="the model it was trained on"),
    out: Path | None = option(
        None, metavar="PATH", help="File or folder to write.", shown_default="beside RUN|ADAPTER"
    ),
    kind: str | None = option(
        None,
        flags=("--type",),
        metavar="TYPE",
        help="Number format of the result, such as q8_0. For gguf the default is f32. For merged weights it is the "
        "smallest format that keeps 99 % of the update. A model from --train full keeps its format.",
    ),
    base_model: str | None = option(
        None,
        metavar="NAME",
        help="Name of the base model to write into the adapter, such as Qwen/Qwen2.5-0.5B-Instruct.",
        shown_default="the name in the model's file",
    ),
    force: bool = option(False, help="Overwrite an existing file or folder."),
    json: bool = JSON,
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
