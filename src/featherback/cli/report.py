"""`featherback report`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from featherback.core.terminal import say


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run, finished or not.")],
    png: Annotated[bool, typer.Option("--png", help="Also draw report.png. This needs matplotlib.")] = False,
    samples: Annotated[
        int | None,
        typer.Option(min=0, help="Number of examples to answer before and after training.", show_default="as recorded"),
    ] = None,
) -> None:
    """Write report.html and loss.svg into the directory of a run.

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
