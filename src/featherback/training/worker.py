"""`python -m featherback.training.worker RUN_DIR`: the training process.

It holds Python, NumPy and the kernels, and nothing that only the command line or the data preparation needs.
"""

from __future__ import annotations

import sys

from featherback.failure import report
from featherback.terminal import complain, open_streams

EXIT_CODES = {"finished": 0, "stopped early": 0, "interrupted": 130}


def main(arguments: list[str]) -> int:
    """Train the run directory that is the first of the `arguments`; the exit status."""
    directory, *flags = arguments
    from featherback.training.checkpoint import latest_step
    from featherback.training.interrupt import Interrupt
    from featherback.training.profile import profiled
    from featherback.training.reporter import JSONReporter, TextReporter
    from featherback.training.run_directory import RunDirectory
    from featherback.training.trainer import train_run

    reporter = JSONReporter() if "--json" in flags else TextReporter()
    try:
        with profiled(reporter, "--profile" in flags):
            run = RunDirectory.take(directory, _inherited(flags, "lock"))
            status = train_run(run, reporter, interrupt=Interrupt(_inherited(flags, "signals")))
    except Exception as error:
        return report(error, "--debug" in flags)
    except KeyboardInterrupt:
        complain("\ninterrupted before the step ended; the last checkpoint is kept")
        return 130
    if status == "interrupted" and not latest_step(run.path):
        reporter.note(f"interrupted before the first step; the same command with --resume begins {directory}")
        return EXIT_CODES[status]
    if status == "interrupted":
        reporter.note(f"interrupted: saved; the same command with --resume continues {directory}")
    elif status == "stopped early":
        reporter.note("stopped early: the held-out loss no longer fell")
    reporter.note(f"adapter: {directory}")
    return EXIT_CODES[status]


def _inherited(flags: list[str], name: str) -> int | None:
    """A descriptor from the program that this process was before."""
    return next((int(flag.partition("=")[2]) for flag in flags if flag.startswith(f"--{name}=")), None)


if __name__ == "__main__":
    open_streams(lasting=True)  # the work of hours does not depend on who looks on
    sys.exit(main(sys.argv[1:]))
