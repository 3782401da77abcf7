"""A real, small disk that fills up during a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from featherback.errors import FeatherbackError
from featherback.runs import checkpoint
from featherback.runs.callback import Callback
from featherback.runs.events import Step
from featherback.runs.run_directory import RunDirectory
from featherback.runs.trainer import train_run
from tests.runs import runs
from tests.support.tiers import some

SIZE = 2_000_000
OPTIONS: dict[str, Any] = {"rank": 8, "steps": 6, "save_every": 1, "learning_rate": 1e-2}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of SIZE bytes."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only the superuser of a Linux can mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    done = subprocess.run(mounted, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _fill(ballast: Path, spare: int) -> None:
    """Fill the disk with a file, except for `spare` bytes."""
    with open(ballast, "wb", buffering=0) as file:
        with suppress(OSError):
            while file.write(bytes(1 << 12)):
                pass
        file.truncate(file.tell() // 4096 * 4096 - spare)


class Fills(Callback):
    def __init__(self, ballast: Path, spare: int) -> None:
        self.ballast, self.spare = ballast, spare

    def step(self, event: Step) -> None:
        if event.step == 4:
            _fill(self.ballast, self.spare)


@pytest.mark.parametrize("spare", some([0, 1 << 12, 1 << 15, 1 << 16], 2))
def test_a_disk_that_fills_costs_a_step_and_no_more(tiny_path: Path, tmp_path: Path, disk: Path, spare: int) -> None:
    """Wherever the space runs out, the last checkpoint is intact, the record is right, and the run can be resumed."""
    whole = runs.prepared(tiny_path, tmp_path / "whole", **OPTIONS)
    train_run(whole)
    run, ballast = runs.prepared(tiny_path, disk / "run", **OPTIONS), disk / "ballast"
    with pytest.raises(FeatherbackError, match=rf"Cannot write {run.path}/.*: No space left on device\.") as raised:
        train_run(run, Fills(ballast, spare))
    record = RunDirectory.open(run.path).record
    assert (record.status, record.failure and record.failure.reason) == ("failed", str(raised.value))
    checkpoints = sorted(path.name for path in run.path.glob("*.fbc"))
    assert checkpoints in (
        ["checkpoint-000002.fbc", "checkpoint-000003.fbc"],
        ["checkpoint-000003.fbc", "checkpoint-000004.fbc"],
    )
    with pytest.raises(FeatherbackError, match="MB free, but the run needs up to"):
        train_run(runs.resumed(tiny_path, run.path))  # told before the first step
    ballast.unlink()
    resumed = runs.resumed(tiny_path, run.path)
    assert train_run(resumed) == "finished"
    assert checkpoint.latest_step(run.path) == 6
    for name in ("adapter_model.safetensors", "checkpoint-000006.fbc"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert not list(run.path.glob(".*"))
