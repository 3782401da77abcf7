"""The live view in a notebook: the same lines as on a terminal, in one output that is replaced at each update."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from html import escape
from typing import Any
from uuid import uuid4

from featherback.view.frame import Line
from featherback.view.live import LiveView

_SIZE = os.terminal_size((96, 30))
_REDRAW = 0.5  # seconds: each drawing is a message to the browser
_FONT = "line-height:1.2;font-family:monospace"
LOOKS = {
    "": "",
    "dim": "opacity:0.6",
    "bold": "font-weight:bold",
    "loss": "color:#0891b2",
    "held": "color:#16a34a",
    "good": "color:#16a34a",
    "bad": "color:#dc2626",
}
"""Style of a piece of text -> CSS that is readable on light and dark pages."""

Display = Callable[..., Any]
"""IPython's `display`."""


def notebook_display() -> Display | None:
    """Return IPython's `display` if this process runs a notebook, else None. Does not import IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):  # IPython on a terminal has no kernel
        return None
    from IPython.display import display

    found: Display = display
    return found


class NotebookView(LiveView):
    """The live view in a cell. Notes and results go to the cell's output as text."""

    def __init__(self, display: Display) -> None:
        super().__init__(sys.stdout, lambda: _SIZE, _REDRAW)
        self._display, self._name = display, uuid4().hex
        self._begun = False

    def _paint(self, lines: list[Line]) -> None:
        text = "\n".join(line.text for line in lines)
        page = f'<pre style="{_FONT}">' + "\n".join(map(_html, lines)) + "</pre>"
        contents = {"text/plain": text, "text/html": page}
        self._display(contents, raw=True, display_id=self._name, update=self._begun)
        self._begun = True

    def _erase(self) -> None:
        """Do nothing: text is printed below the view."""


def _html(line: Line) -> str:
    return "".join(
        f'<span style="{LOOKS[style]}">{escape(text)}</span>' if LOOKS[style] else escape(text)
        for text, style in line.parts
    )
