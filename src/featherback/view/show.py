"""Choose how a run is shown: while it trains, and afterwards."""

from __future__ import annotations

import os
import sys
from typing import IO

from featherback.runs.run_directory import RunDirectory
from featherback.view.reporter import TextReporter


def reporter(out: IO[str] | None = None) -> TextReporter:
    """Return the reporter for a person at `out`; the default is the notebook that runs this process, or stdout.

    It is the live view if `out` can show it, else plain lines.
    """
    if out is None and "IPython" in sys.modules:
        from featherback.view.notebook import NotebookView, notebook_display

        if (display := notebook_display()) is not None:
            return NotebookView(display)
    out = out or sys.stdout
    if not out.isatty() or os.environ.get("TERM") in (None, "", "dumb") or not _can_show(out):
        return TextReporter(out)
    from featherback.view.live import LiveView  # imported here: not needed without a terminal

    return LiveView(out)


def draw(run: RunDirectory) -> None:
    """Write the run's report. The drawing code is imported here, after training has freed its memory."""
    from featherback.view.report.page import write_report

    write_report(run)


def _can_show(out: IO[str]) -> bool:
    return (getattr(out, "encoding", None) or "").lower().replace("-", "").startswith("utf")
