"""Words of commands, as shells read them."""

from __future__ import annotations

import re
from collections.abc import Callable

_PLAIN = re.compile(r"[\w.:/\\=+~-]+")
_BEFORE_QUOTE = re.compile(r'(\\*)("|$)')


def quote(text: str, is_hidden: Callable[[str], bool]) -> str:
    """Return a word of a command, quoted for cmd.exe and PowerShell, which both know double quotes.

    `is_hidden`: for other systems; names of files have no such characters here.
    """
    if _PLAIN.fullmatch(text):
        return text
    inside = _BEFORE_QUOTE.sub(lambda found: 2 * found[1] + ('\\"' if found[2] else ""), text)
    return f'"{inside}"'
