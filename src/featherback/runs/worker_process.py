"""The training process as others see it: how it is started, or taken the place of, and what it holds to begin with.

Imports next to nothing: while the probe runs, its owner's memory counts as well.
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

# A process that has loaded all that training loads, but no data, and run a step of a toy, reports itself.
_PROBE = """
import json, sys
import featherback.worker
import featherback.runs.trainer
import featherback.view.live
from featherback.runs.rehearsal import rehearsed_baseline
from featherback.runs.loggers import loggers
list(loggers(sys.argv[1:]))
here = rehearsed_baseline()
print(json.dumps((here.footprint, here.rss)))
"""

# One BLAS thread, one heap: NumPy's BLAS is not used, and every thread of it would cost megabytes.
_LEAN = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def worker_environment() -> dict[str, str]:
    """The environment of the training process."""
    return {**os.environ, **_LEAN}


def worker_baseline(log_to: Iterable[str] = ()) -> Baseline:
    """What a fresh training process that logs to these programs holds, measured by starting one; settled, so that it is
    the same for the same command."""
    logged = sorted(log_to)
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE, *logged], env=worker_environment(), capture_output=True, text=True, check=True
    )
    from featherback.engine.host.machine import Baseline  # with NumPy, which may not be here while the other is

    return Baseline(*json.loads(probe.stdout)).settled(process="worker", log_to=logged)


def become(module: str, *arguments: str) -> NoReturn:
    """Replace this process, with all it imported, by `python -m module`, in the environment of the training process.

    A signal that comes meanwhile is that one's first: it finds those held with `inherited(arguments, "signals")`.
    """
    with held_signals() as held:
        command = [sys.executable, "-m", module, *arguments, f"--signals={held}"]
        os.execve(command[0], command, worker_environment())


def inherited(arguments: list[str], name: str) -> int | None:
    """A descriptor from the program that this process was before."""
    return next((int(word.partition("=")[2]) for word in arguments if word.startswith(f"--{name}=")), None)
