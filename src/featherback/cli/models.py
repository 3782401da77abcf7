"""`featherback models`"""

from __future__ import annotations

import json as json_format
import re
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from featherback.cli.options import JSON
from featherback.core.sizes import shown_mb
from featherback.core.terminal import clean, quoted, say

if TYPE_CHECKING:
    from featherback.models.hub.survey import Listed

WITHOUT_BUDGET = "reads headers of model files"
"""Why the command has no memory budget, as docs/memory.md says it."""

_WIDTH = 79
_NAME = 32  # columns; a longer name gets its own line
_ROW = "{:<{name}}  {:<8}  {:>6}  {:<8}  {:>8}  {}"


def models(json: bool = JSON) -> None:
    """List the models on this machine and whether they can be trained.

    Models of Ollama, LM Studio and Hugging Face are included.
    """
    from featherback.models.hub.survey import survey

    if json:
        say(json_format.dumps([asdict(listed) for listed in survey()]))
        return
    say(_ROW.format("name", "family", "params", "type", "size", "trainable", name=_NAME))
    for listed in survey():
        for line in _lines(listed):
            say(line)


def _lines(listed: Listed) -> Iterator[str]:
    """A row of the table, and below it the reason why the model cannot be trained."""
    name = clean(quoted(listed.name), one_line=True)
    if len(name) > _NAME:
        yield name
        name = ""
    facts = (listed.architecture or "-", _short(listed.parameters), listed.type or "-", _megabytes(listed.bytes))
    yield _ROW.format(name, *facts, "yes" if listed.trainable else "no", name=_NAME).rstrip()
    if listed.reason is not None:
        words = clean(_shortened(listed.reason, listed.path), one_line=True)
        yield from textwrap.wrap(
            words, _WIDTH, initial_indent="    ", subsequent_indent="    ", max_lines=3, break_on_hyphens=False
        )


def _shortened(reason: str, path: str | None) -> str:
    """An error shortened to its first part, without the path that the row already shows."""
    if path is None:  # the reason says what to do
        return reason
    reason = reason.replace(path, "it")
    return re.split(r" \(|; |\. ", reason.rstrip("."))[0]


def _short(number: int | None) -> str:
    if number is None:
        return "-"
    return f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.0f}M"


def _megabytes(nbytes: int | None) -> str:
    if nbytes is None:
        return "-"
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{shown_mb(nbytes)}"
