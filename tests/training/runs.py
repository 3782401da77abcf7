"""Runs in processes of their own, on a tiny model."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.training.conftest import SEQ_LEN, sequences

from featherback.training.config import TrainConfig
from featherback.training.launch import prepare_run, resume_run
from featherback.training.rehearsal import rehearsed_baseline
from featherback.training.run_directory import RunDirectory

PATIENCE = 300  # seconds, which only what hangs takes: a busy machine may give a process little of its time
"""Seconds after which something hangs."""


def prepared(model: Path, out: Path, **options: Any) -> RunDirectory:
    """A run that is ready to train, locked by this process."""
    config = TrainConfig(
        model=str(model), data="tokens", out=str(out), seq_len=SEQ_LEN, compute="fp32", **options
    )
    return prepare_run(config, sequences(), baseline=rehearsed_baseline)


def resumed(model: Path, out: Path, **options: Any) -> RunDirectory:
    """The same run, taken up again."""
    return resume_run({"model": str(model), "out": str(out), **options}, baseline=rehearsed_baseline)


def worker(run: Path, script: str | None = None, *flags: str) -> subprocess.Popen[str]:
    """The training process, or one that runs `script` with the directory as its argument."""
    how = ["-m", "featherback.training.worker"] if script is None else ["-c", script]
    command = [sys.executable, *how, str(run), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    """Until `what` holds, while the process lives."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)
