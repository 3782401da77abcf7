"""The training process: its environment, its command, and the memory that it holds before it has a model."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from featherback.engine.host.machine import Baseline
    from featherback.runs.run_directory import RunDirectory

_WORKER = "featherback.worker"
REHEARSE = "--rehearse"
"""The argument with which a training process prints its memory before it has a model, as JSON, and ends."""
LEAN = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
"""One BLAS thread and one heap: NumPy's BLAS is not used, and each of its threads would cost megabytes."""


def worker_environment() -> dict[str, str]:
    """Return the environment of the training process."""
    return {**os.environ, **LEAN}


def worker_command(run: RunDirectory, *flags: str) -> tuple[list[str], dict[str, str]]:
    """Release the run and return the arguments and environment of its training process, to be started at once."""
    run.release()
    return [sys.executable, "-m", _WORKER, str(run.path), *flags], worker_environment()


def worker_baseline() -> Baseline:
    """Start a fresh training process and return its memory.

    The result is remembered, so the same command always gets the same.
    """
    import json

    found = json.loads(_probe(worker_environment()))
    from featherback.engine.host.machine import Baseline  # imports NumPy, so only after the probe has ended

    return Baseline(*found).settled(process="worker", log_to=[])


def _probe(environment: dict[str, str]) -> str:
    """Return what the rehearsal of a training process prints."""
    import subprocess

    command = [sys.executable, "-m", _WORKER, REHEARSE]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
