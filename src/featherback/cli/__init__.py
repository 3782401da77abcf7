"""The command line. `main` is the console script."""

from __future__ import annotations

import os
import sys

from featherback.core import signals

_LAUNCHED = ("train", "evaluate", "compare")


def is_launched(arguments: list[str]) -> bool:
    """Whether these arguments name a command that `cli/launcher.py` runs."""
    return next((word for word in arguments if word != "--debug"), None) in _LAUNCHED


def main() -> None:
    """Run the command that sys.argv names, and exit with its status."""
    signals.block()  # until a handler is in place
    signals.exit_with(_run)


def _run() -> int:
    signals.unblock()
    _keep_out_the_working_directory()
    arguments = sys.argv[1:]
    launched = is_launched(arguments)
    if launched:
        _be_lean()
    from featherback.core.terminal import open_streams

    open_streams()
    if launched:
        from featherback.cli.launcher import launch

        return launch(arguments)
    from featherback.cli.app import run

    status = run(arguments)
    assert isinstance(status, int)  # only launched commands return anything else
    return status


def _be_lean() -> None:
    """Start this program anew with one heap, unless it has one: the allocator reads that only at the start."""
    from featherback.core.system import processes
    from featherback.runs.worker_process import LEAN

    if LEAN.items() <= os.environ.items():
        return
    os.environ.update(LEAN)
    processes.restart()


def _keep_out_the_working_directory() -> None:
    """Keep the working directory out of sys.path in the programs that follow, unless it is in ours.

    It may be a stranger's directory with a numpy.py in it. Python supports this from version 3.11 on.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was deleted
        return
    if not {"", here} & set(sys.path):
        os.environ["PYTHONSAFEPATH"] = "1"
