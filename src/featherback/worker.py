"""Training in this process: what `featherback train` ends with. Also `python -m featherback.worker RUN_DIR`.

It loads Python, NumPy and the kernels, but nothing that only the command line or the data preparation needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from featherback.core.failure import report
from featherback.core.naming import use_flags
from featherback.core.signals import INTERRUPTED, exit_with
from featherback.core.terminal import DEBUG, open_streams, print_error, quoted
from featherback.runs.worker_process import REHEARSE

if TYPE_CHECKING:
    from featherback.engine.host.machine import Baseline

WORSE = 3
"""Exit status of a run that reached its end with a result worse than the model before training."""
ENDED = (0, WORSE)
"""Exit statuses of a run that reached its end."""


def main(arguments: list[str]) -> int:
    """Train the run in the directory `arguments[0]`; return the exit status. The other arguments are flags."""
    if arguments == [REHEARSE]:
        from json import dumps

        here = rehearsed()
        sys.stdout.write(dumps((here.footprint, here.rss)))
        return 0
    directory, *flags = arguments
    return train(directory, "--json" in flags, "--profile" in flags)


def rehearsed(log_to: Iterable[str] = ()) -> Baseline:
    """Load what the training process loads, with these loggers, and return the memory of this process."""
    import featherback.runs.trainer
    import featherback.view.live  # noqa: F401
    from featherback.runs.loggers import loggers
    from featherback.runs.rehearsal import rehearsed_baseline

    list(loggers(log_to))
    return rehearsed_baseline()


def train(
    directory: str,
    json: bool = False,
    profile: bool = False,
    lock: int | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> int:
    """Train the run in a prepared directory, show it, and return the exit status.

    `lock`: a descriptor that holds the run's lock. `interrupted`: whether a signal has asked for the end already.
    """
    from featherback.engine.host.interrupt import Interrupt
    from featherback.models.loader import results
    from featherback.runs.checkpoint import latest_step
    from featherback.runs.events import Note
    from featherback.runs.outcome import chat_command, is_worse, over_budget, repeat_command, worse_message
    from featherback.runs.profile import profiled
    from featherback.runs.run_directory import RunDirectory
    from featherback.runs.trainer import train_run
    from featherback.view.report.page import REPORT
    from featherback.view.reporter import JSONReporter
    from featherback.view.show import draw, reporter

    run, interrupt = None, Interrupt(interrupted)
    shown = JSONReporter() if json else reporter()
    try:
        with profiled(shown, profile):
            run = RunDirectory.take(directory, lock)
            status = train_run(run, shown, interrupt=interrupt, draw=draw)
    except Exception as error:
        return report(error, DEBUG in os.environ)
    except KeyboardInterrupt:
        if run is not None and run.record.status in ("finished", "stopped early"):
            print_error(
                f"\ninterrupted; the run is finished. For its report: {quoted('featherback', 'report', directory)}"
            )
        else:
            print_error("\ninterrupted before the step ended; the last checkpoint is kept")
        return INTERRUPTED
    if status == "interrupted":
        if not latest_step(run.path):
            shown.tell(
                Note(f"interrupted before the first step; to start {directory}, repeat the command with --resume")
            )
            return INTERRUPTED
        shown.tell(Note(f"interrupted and saved; to continue {directory}, repeat the command with --resume"))
    full = run.config.train == "full"
    found = next(path for path in results(run.path) if path.exists()) if full else directory
    shown.tell(Note(f"{'model' if full else 'adapter'}: {found}"))
    if status == "interrupted":
        return INTERRUPTED
    if (run.path / REPORT).exists():
        shown.tell(Note(f"report: {run.path / REPORT}"))
    if (over := over_budget(run)) is not None:
        print_error(f"error: {over}")
        return 1
    if is_worse(run.record.summary):
        shown.tell(Note(worse_message(run.record, f"Train again: {quoted(*repeat_command(run.record, directory))}")))
        return WORSE
    shown.tell(Note(f"next: {quoted(*chat_command(run.record, directory))}"))
    return INTERRUPTED if interrupt.requested else 0


if __name__ == "__main__":
    use_flags()
    open_streams(lasting=True)  # hours of training must not depend on an open terminal
    exit_with(lambda: main(sys.argv[1:]))
