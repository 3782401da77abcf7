"""How a run is shown, while it trains and afterwards."""

from __future__ import annotations

import os
import sys
from typing import IO

from featherback.runs.run_directory import RunDirectory
from featherback.view.reporter import TextReporter


def reporter(out: IO[str] | None = None) -> TextReporter:
    """For a person at `out` (default: the notebook that runs this, or standard output): the live view where that can be
    drawn, else plain lines.
    """
    if out is None and "IPython" in sys.modules:
        from featherback.view.notebook import NotebookView, notebook_display

        if (display := notebook_display()) is not None:
            return NotebookView(display)
    out = out or sys.stdout
    if not out.isatty() or os.environ.get("TERM") in (None, "", "dumb") or not _can_show(out):
        return TextReporter(out)
    from featherback.view.live import LiveView  # which a process that is not looked at does without

    return LiveView(out)


def draw(run: RunDirectory) -> None:
    """Write the report of a run. What draws it is imported only now, when the memory of training is free."""
    from featherback.view.report.page import write_report

    write_report(run)


def _can_show(out: IO[str]) -> bool:
    return (getattr(out, "encoding", None) or "").lower().replace("-", "").startswith("utf")
