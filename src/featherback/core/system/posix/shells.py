"""Words of commands, as shells read them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable


def quote(text: str, is_hidden: Callable[[str], bool]) -> str:
    """Return a word of a command, quoted for a shell: bash, zsh and others, if it has characters that are not shown.

    `is_hidden`: whether a text has characters that are not shown.
    """
    if not is_hidden(text):
        return shlex.quote(text)
    characters = (
        "".join(f"\\{byte:03o}" for byte in os.fsencode(each)) if each in "\\'" or is_hidden(each) else each
        for each in text
    )
    return f"$'{''.join(characters)}'"
