"""`featherback fetch`"""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|HF_REPO[:FILE]", help="smollm2-135m, or a Hugging Face repository and its file."
        ),
    ],
) -> None:
    """Download a model into the cache, verify its SHA-256, and print its path."""
    from featherback.hub.fetch import fetch as get

    print(get(name, progress=lambda text: print(text, file=sys.stderr)))
