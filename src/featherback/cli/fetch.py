"""`featherback fetch`"""

from __future__ import annotations

from typing import Annotated

import typer

from featherback.core.terminal import complain, say


def fetch(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME|HF_REPO[:FILE]", help="smollm2-135m, or a Hugging Face repository and its file."),
    ],
) -> None:
    """Download a model into the cache, verify its SHA-256, and print its path."""
    from featherback.models.hub.fetch import fetch as get

    say(str(get(name, progress=complain)))
