"""Only one process at a time uses a run, from preparation to the end, however the process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from featherback.errors import FeatherbackError
from featherback.runs.launch import exec_worker
from featherback.runs.run_directory import RunDirectory
from tests.runs import runs

HOLDER = """
import sys
from featherback.runs.run_directory import RunDirectory
run = RunDirectory.take(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""

BECOMES = """
import sys
from featherback.runs.launch import exec_worker
from featherback.runs.run_directory import RunDirectory
run = RunDirectory.take(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()  # a terminal that does not move on
exec_worker(run, "--json")
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


def test_the_lock_outlasts_the_exec_of_the_worker(tiny_path: Path, tmp_path: Path) -> None:
    """A run that waits on its terminal before it trains is still the only one; then it trains under the same lock."""
    run = runs.prepared(tiny_path, tmp_path / "run", steps=3)
    run.release()
    holder = _holder(run.path, BECOMES)
    with pytest.raises(FeatherbackError, match="another process"):
        runs.resumed(tiny_path, run.path)
    out, _ = holder.communicate("go\n", timeout=runs.PATIENCE)
    assert holder.returncode == 0
    assert out.count('"loss"') == 3
    assert RunDirectory.open(run.path).record["status"] == "finished"
    runs.resumed(tiny_path, run.path).release()


def test_the_descriptor_is_passed_to_the_worker_alone(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.prepared(tiny_path, tmp_path / "run", steps=1)
    called: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda path, command, environment: called.append(command))
    exec_worker(run, "--json")
    (flag,) = [text for text in called[0] if text.startswith("--lock=")]
    descriptor = int(flag.partition("=")[2])
    assert os.path.samestat(os.fstat(descriptor), os.stat(run.path))
    assert os.get_inheritable(descriptor)
    other = runs.prepared(tiny_path, tmp_path / "other", steps=1)
    lock = other.pass_lock()
    assert lock is not None
    assert lock != descriptor
    for taken in (run, other):
        taken.release()
