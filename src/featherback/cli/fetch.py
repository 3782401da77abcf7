"""`featherback fetch`"""

from __future__ import annotations

from featherback.core.options import option
from featherback.core.terminal import print_error, say

WITHOUT_BUDGET = "copies a file and reads its header"
"""Why the command has no memory budget, as docs/memory.md says it."""


def fetch(
    name: str = option(
        positional=True, metavar="NAME|HF_REPO[:FILE]", help="smollm2-135m, or a Hugging Face repository."
    ),
) -> None:
    """Download a model, verify it, and print its path.

    The file goes into the cache. Its SHA-256 checksum is verified.
    """
    from featherback.models.hub.fetch import fetch as get

    say(str(get(name, progress=print_error)))
