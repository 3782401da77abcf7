"""`featherback replay`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from featherback.core.terminal import say

WITHOUT_BUDGET = "holds the adapter, and no weights"
"""Why the command has no memory budget, as docs/memory.md says it."""


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run with --log-directions.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New directory for the adapter.")],
    step: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this step.", show_default="the run's last")
    ] = None,
) -> None:
    """Rebuild the adapter of a MeZO run without its data.

    The adapter is computed from run.json and directions.log, and from start/ if the run used --from. The base model
    must still be at its recorded path. As in the run, the result is the average over the steps, or the last step with
    --keep last.

    Example: featherback replay notes-adapter --out notes-again
    """
    from featherback.runs.replay import replay as replayed
    from featherback.runs.run_directory import RunDirectory

    last = replayed(RunDirectory.open(run), out, step)
    say(f"wrote the adapter of step {last} to {out}")
