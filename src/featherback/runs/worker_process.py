"""Starts the training process, or replaces this process by it, and measures its initial memory.

This module imports next to nothing: while the probe runs, the memory of its parent counts as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

from featherback.engine.host.interrupt import held_signals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from featherback.engine.host.machine import Baseline

# A probe loads the code of a process, but no data, runs a step on a toy model, and prints its own memory.
_PROBES = {
    "worker": """
import json, sys
import featherback.worker
import featherback.runs.trainer
import featherback.view.live
from featherback.runs.rehearsal import rehearsed_baseline
from featherback.runs.loggers import loggers
list(loggers(sys.argv[1:]))
here = rehearsed_baseline()
print(json.dumps((here.footprint, here.rss)))
""",
    "evaluation": """
import json
import featherback.cli.begin
import featherback.cli.measured
import featherback.runs.evaluating
from featherback.runs.rehearsal import rehearsed_baseline
here = rehearsed_baseline(trains=False)
print(json.dumps((here.footprint, here.rss)))
""",
}

# One BLAS thread and one heap: NumPy's BLAS is not used, and each of its threads would cost megabytes.
_LEAN = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def worker_environment() -> dict[str, str]:
    """Return the environment of the training process."""
    return {**os.environ, **_LEAN}


def worker_baseline(log_to: Iterable[str] = (), process: str = "worker") -> Baseline:
    """Start a fresh training process with these loggers and return its memory; or a process that evaluates.

    The result is remembered, so the same command always gets the same.
    """
    logged = sorted(log_to)
    probe = subprocess.run(
        [sys.executable, "-c", _PROBES[process], *logged],
        env=worker_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    from featherback.engine.host.machine import Baseline  # imports NumPy, so only after the probe has ended

    return Baseline(*json.loads(probe.stdout)).settled(process=process, log_to=logged)


def exec_module(module: str, *arguments: str) -> NoReturn:
    """Replace this process by `python -m module`, in the environment of the training process.

    Signals that arrive in between are held for the new program, which finds them with
    `inherited(arguments, "signals")`.
    """
    sys.stdout.flush()  # what was printed would be lost
    sys.stderr.flush()
    with held_signals() as held:
        command = [sys.executable, "-m", module, *arguments, f"--signals={held}"]
        os.execve(command[0], command, worker_environment())


def inherited(arguments: list[str], name: str) -> int | None:
    """Return a descriptor inherited from the previous program of this process; None if `arguments` have none."""
    return next((int(word.partition("=")[2]) for word in arguments if word.startswith(f"--{name}=")), None)
