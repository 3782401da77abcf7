"""`python -m featherback.training.worker RUN_DIR`: the training process.

It holds Python, NumPy and the kernels, and nothing that only the command line or the data preparation needs.
"""

from __future__ import annotations

import sys

from featherback.failure import report

EXIT_CODES = {"finished": 0, "stopped early": 0, "interrupted": 130}


def main(arguments: list[str]) -> int:
    """Train the run directory named by `arguments`; the exit status."""
    if hasattr(sys.stdout, "reconfigure"):  # a terminal that knows no block characters shows "?"
        sys.stdout.reconfigure(errors="replace")
    flags = {argument for argument in arguments if argument.startswith("--")}
    (directory,) = (argument for argument in arguments if argument not in flags)
    lock = next((int(flag.partition("=")[2]) for flag in flags if flag.startswith("--lock=")), None)
    from featherback.training.profile import profiled
    from featherback.training.reporter import JSONReporter, TextReporter
    from featherback.training.run_directory import RunDirectory
    from featherback.training.trainer import train_run

    reporter = JSONReporter() if "--json" in flags else TextReporter()
    try:
        with profiled(reporter, "--profile" in flags):
            status = train_run(RunDirectory.take(directory, lock), reporter)
    except Exception as error:
        return report(error, "--debug" in flags)
    except KeyboardInterrupt:
        print("\ninterrupted before the step ended; the last checkpoint is kept", file=sys.stderr)
        return 130
    if status == "interrupted":
        reporter.note(f"interrupted: saved; the same command with --resume continues {directory}")
    elif status == "stopped early":
        reporter.note("stopped early: the held-out loss no longer fell")
    reporter.note(f"adapter: {directory}")
    return EXIT_CODES[status]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
