"""`featherback replay`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from featherback.core.terminal import say


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run with --log-directions.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New directory for the adapter.")],
    step: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="The step to stop after.", show_default="that of the run's adapter"),
    ] = None,
) -> None:
    """Make the adapter of a MeZO run again from its options and its log of directions, without its data.

    It is the mean of the steps' adapters, as in the run, unless that kept its last (--keep).
    RUN needs run.json and directions.log, and start/ if the run began with --from. The model is opened where it lay.

    Example: featherback replay notes-adapter --out notes-again
    """
    from featherback.runs.replay import replay as replayed
    from featherback.runs.run_directory import RunDirectory

    last = replayed(RunDirectory.open(run), out, step)
    say(f"wrote the adapter of step {last} to {out}")
