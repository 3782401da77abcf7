"""`featherback report`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from featherback.core.terminal import say


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run, finished or not.")],
    png: Annotated[bool, typer.Option("--png", help="Draw report.png as well; it needs matplotlib.")] = False,
    samples: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Have so many examples answered before and after the run.",
            show_default="those that it recorded",
        ),
    ] = None,
) -> None:
    """Draw what happened in a run: report.html and loss.svg in its directory.

    Example: featherback report notes-adapter
    """
    from featherback.runs.run_directory import RunDirectory
    from featherback.view.report.page import write_report

    opened = RunDirectory.open(run) if samples is None else RunDirectory.take(run)
    if samples is not None:
        from featherback.cli.options import set_threads
        from featherback.runs.samples import sample

        set_threads(opened.config.threads)
        sample(opened, samples)
    say(str(write_report(opened)))
    if png:
        from featherback.view.report.png import write_png

        say(str(write_png(opened)))
