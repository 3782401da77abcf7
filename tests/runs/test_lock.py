"""Only one process at a time uses a run, from preparation to the end, however the process ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from featherback.errors import FeatherbackError
from featherback.runs.run_directory import RunDirectory
from tests.runs import runs

HOLDER = """
import sys
from featherback.runs.run_directory import RunDirectory
run = RunDirectory.take(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def _holder(run: Path, script: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_live_holder_keeps_others_out_and_a_killed_one_does_not(tiny_path: Path, tmp_path: Path) -> None:
    run = runs.prepared(tiny_path, tmp_path / "run", steps=2)
    with pytest.raises(FeatherbackError, match="prepared or trained by another process"):
        runs.resumed(tiny_path, run.path)  # though in this very process
    assert run.is_locked
    run.release()
    assert not run.is_locked
    holder = _holder(run.path, HOLDER)
    assert run.is_locked
    record = (run.path / "run.json").read_bytes()
    with pytest.raises(FeatherbackError, match="prepared or trained by another process"):
        runs.resumed(tiny_path, run.path)
    second = runs.worker(run.path)
    _, err = second.communicate(timeout=runs.PATIENCE)
    assert second.returncode == 2
    assert err.strip() == f"error: The run {run.path} is being prepared or trained by another process."
    assert (run.path / "run.json").read_bytes() == record
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=runs.PATIENCE)
    assert not run.is_locked
    runs.resumed(tiny_path, run.path).release()


def test_a_command_holds_the_lock_from_the_preparation_to_the_end(tmp_path: Path) -> None:
    """Its children prepare the run, and the process that waits for them trains it."""
    _, out, words = runs.whole_command(tmp_path, 40)
    process = subprocess.Popen(
        [sys.executable, "-m", "featherback", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    runs.wait_for(lambda: (out / "run.json").exists(), process)
    locked: list[bool] = []
    while process.poll() is None and RunDirectory.open(out).record.status != "finished":
        locked.append(RunDirectory(out, {}).is_locked or RunDirectory(out, {}).is_locked)
        time.sleep(0.02)
    assert process.wait(runs.PATIENCE) == 0
    assert len(locked) > 3
    assert all(locked[:-1])  # the run may have ended before the last
    assert not RunDirectory.open(out).is_locked
