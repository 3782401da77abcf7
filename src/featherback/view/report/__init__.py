"""Write `report.html` and `loss.svg`: charts of a run, drawn from its directory, whether or not it has finished.

Runs of any length work: metrics are read line by line, and a curve has at most `totals.MOST` points, with its extremes.
"""

from __future__ import annotations

import re

from featherback.core.terminal import clean

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


_SPECIAL = re.compile(
    r"<\|(?P<pipes>[\w .:-]{1,40})\|>|<(?P<plain>/?(?:s|bos|eos|pad|unk|start_of_turn|end_of_turn))>"
    r"|\[(?P<square>/?INST)\]"
)
"""Special tokens of common chat templates."""


def escape_with_small_tokens(text: str) -> str:
    """Escape a text for HTML, with special tokens shown small: `<|im_start|>` as "im_start"."""
    parts, at = [], 0
    for found in _SPECIAL.finditer(text):
        name = next(group for group in found.groups() if group)
        whole = escaped(found[0])
        parts += [escaped(text[at : found.start()]), f'<small title="{whole}">{escaped(name)}</small>']
        at = found.end()
    return "".join([*parts, escaped(text[at:])])


def between_tokens(text: str) -> list[str]:
    """Return the parts of a text between its special tokens, without space around them and without empty ones."""
    edges = [0, *(place for found in _SPECIAL.finditer(text) for place in found.span()), len(text)]
    parts = [text[start:end].strip() for start, end in zip(edges[::2], edges[1::2])]
    return [part for part in parts if part]


def escaped(value: object) -> str:
    """Escape a value for HTML. Control characters are replaced as they are on a terminal.

    (The standard library's `html` loads a table of two thousand names.)
    """
    return clean(str(value)).translate(_ENTITIES)
