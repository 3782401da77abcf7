"""`featherback report`"""

from __future__ import annotations

from pathlib import Path

from featherback.cli.options import MEMORY
from featherback.core.options import option
from featherback.core.terminal import say
from featherback.errors import FeatherbackError


def report(
    run: Path = option(positional=True, metavar="RUN", help="Directory of a run, finished or not."),
    png: bool = option(False, help="Also draw report.png. This needs matplotlib."),
    samples: int | None = option(
        None, help="Number of examples to answer before and after training.", least=0, shown_default="as recorded"
    ),
    memory: int | str | None = MEMORY,
) -> None:
    """Write report.html and loss.svg into the directory of a run.

    Example: featherback report notes-adapter
    """
    from featherback.runs.run_directory import RunDirectory
    from featherback.view.report.page import write_report

    if memory is not None and samples is None:
        raise FeatherbackError("--memory limits the answers of --samples, which is missing; add --samples 2.")
    opened = RunDirectory.open(run) if samples is None else RunDirectory.take(run)
    if samples is not None:
        from featherback.cli.options import set_threads
        from featherback.runs.decoders import Within
        from featherback.runs.samples import sample

        set_threads(opened.config.threads)
        sample(opened, samples, within=Within(memory, opened.plan.weights, opened.path, whole=True))
    say(str(write_report(opened)))
    if png:
        from featherback.view.report.png import write_png

        say(str(write_png(opened)))
