"""Text in HTML and SVG. (The standard library's `html` brings a table of two thousand names into memory.)"""

from __future__ import annotations

import re

from featherback.core.terminal import clean

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


_SPECIAL = re.compile(
    r"<\|(?P<pipes>[\w .:-]{1,40})\|>|<(?P<plain>/?(?:s|bos|eos|pad|unk|start_of_turn|end_of_turn))>"
    r"|\[(?P<square>/?INST)\]"
)
"""Tokens of chat templates, as models spell them, with their name."""


def quietened(text: str) -> str:
    """A text with the special tokens in it as small names: `<|im_start|>` as im_start."""
    parts, at = [], 0
    for found in _SPECIAL.finditer(text):
        name = next(group for group in found.groups() if group)
        whole = escaped(found[0])
        parts += [escaped(text[at : found.start()]), f'<small title="{whole}">{escaped(name)}</small>']
        at = found.end()
    return "".join([*parts, escaped(text[at:])])


def escaped(value: object) -> str:
    """What a name or an option says, as text that is nothing else; control characters as in a terminal."""
    return clean(str(value)).translate(_ENTITIES)
