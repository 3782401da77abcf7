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
    """Get a model into the cache, verified by its SHA-256, and print where it is."""
    from featherback.hub.fetch import fetch as get

    print(get(name, progress=lambda text: print(text, file=sys.stderr)))
