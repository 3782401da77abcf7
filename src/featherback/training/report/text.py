"""Text in HTML and SVG. (The standard library's `html` brings a table of two thousand names into memory.)"""

from __future__ import annotations

from featherback.terminal import clean

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


def escaped(value: object) -> str:
    """What a name or an option says, as text that is nothing else; control characters as in a terminal."""
    return clean(str(value)).translate(_ENTITIES)
