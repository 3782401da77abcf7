"""Runs on a tiny model in separate processes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from featherback.runs.config import TrainConfig
from featherback.runs.preparation import prepare_run, resume_run
from featherback.runs.rehearsal import rehearsed_baseline
from featherback.runs.run_directory import RunDirectory
from tests.runs.conftest import SEQ_LEN, sequences
from tests.support.tiny_chat import write_messages, write_tiny_chat

# A training process that kills itself at call number `at` of the functions WRITES.
_DIES = """
import os, signal, sys
at, calls = int(sys.argv.pop()), 0

def dying(original):
    def call(*values, **options):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*values, **options)
    return call

for name in WRITES:
    setattr(os, name, dying(getattr(os, name)))
from featherback import worker
sys.exit(worker.main(sys.argv[1:]))
"""

PATIENCE = 300  # seconds, which only what hangs takes: a busy machine may give a process little of its time
"""Seconds after which a process is considered to hang."""


def prepared(model: Path, out: Path, **options: Any) -> RunDirectory:
    """Return a run that is ready to train, locked by this process."""
    options = {"keep_checkpoints": True, **options}  # many tests go on with it
    config = TrainConfig(model=str(model), data="tokens", out=str(out), seq_len=SEQ_LEN, compute="fp32", **options)
    return prepare_run(config, sequences(), baseline=rehearsed_baseline)


def resumed(model: Path, out: Path, **options: Any) -> RunDirectory:
    """Return the same run, resumed."""
    return resume_run({"model": str(model), "out": str(out), **options}, baseline=rehearsed_baseline)


def worker(run: Path, script: str | None = None, *flags: str) -> subprocess.Popen[str]:
    """Start the training process, or a process that runs `script` with the directory as its argument."""
    how = ["-m", "featherback.worker"] if script is None else ["-c", script]
    command = [sys.executable, *how, str(run), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(run: RunDirectory) -> RunDirectory:
    """Train a run of `prepared` or `resumed` to its end."""
    run.release()
    process = worker(run.path)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return run


def killed_and_finished(
    number: int, model: Path, out: Path, writes: tuple[str, ...], calls: int, seconds: float, **options: Any
) -> RunDirectory:
    """Train a run that is killed with SIGKILL up to three times before it finishes.

    Even numbers die inside a write, at one of so many first `calls` of the functions `writes` of `os`; odd ones at a
    random moment up to so many `seconds` after they began, mostly counted from when they are at work.
    """
    chance, deaths = random.Random(number), 0
    run = prepared(model, out, **options)
    for again in range(1 + number % 3):
        if again:
            run = resumed(model, out)
        run.release()
        if number % 2 == 0:
            script = _DIES.replace("WRITES", repr(writes))
            process = worker(run.path, script, str(chance.randrange(1, calls)))
        else:
            process = worker(run.path)
            if chance.random() < 0.7:
                wait_for(lambda p=process, r=run: p.poll() == 0 or list(r.path.glob("work")), process)
            time.sleep(chance.uniform(0, seconds))
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        deaths += 1
    assert deaths or number % 2
    return finished(resumed(model, out))


def whole_command(folder: Path, steps: int) -> tuple[Path, Path, list[str]]:
    """Write a tiny chat model and its data; return the model, a run's directory, and the words of `train`."""
    model, data, out = write_tiny_chat(folder / "m.gguf"), write_messages(folder / "few.jsonl"), folder / "run"
    words = ["train", model, "--data", data, "--out", out, "--steps", steps, "--seq-len", 64, "--samples", 0]
    return model, out, [str(word) for word in words]


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until `what` is true, or until `process`, if given, has ended."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert process is None or process.poll() is None, process and process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)
