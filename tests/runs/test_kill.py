"""Runs that are killed with SIGKILL at any point end with the adapter of an undisturbed run.

`make test-kill` kills a hundred; FEATHERBACK_KILLS says how many.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from featherback.runs.run_directory import RunDirectory
from tests.runs import runs
from tests.support import tiers

WRITES = ("fsync", "replace", "unlink")
"""The functions that write checkpoints, adapters and records."""
KILLS = int(os.environ.get("FEATHERBACK_KILLS", "8"))
OPTIONS: dict[str, Any] = {"steps": 40, "save_every": 2, "rank": 4, "learning_rate": 1e-2, "threads": 1}


def _adapter(run: Path) -> bytes:
    return (run / "adapter_model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    run = runs.prepared(tiny_path, tmp_path_factory.mktemp("whole") / "run", **OPTIONS)
    return runs.finished(run).path


@pytest.mark.parametrize("number", tiers.some(range(KILLS), 1))
def test_a_killed_run_ends_as_if_it_had_not_been(tiny_path: Path, tmp_path: Path, whole: Path, number: int) -> None:
    """Even numbers die inside a write, odd ones at a random moment."""
    run = runs.killed_and_finished(number, tiny_path, tmp_path / "run", WRITES, 150, 0.3, **OPTIONS)
    assert _adapter(run.path) == _adapter(whole)
    assert RunDirectory.open(run.path).record.status == "finished"
    assert len(list(run.metrics())) == OPTIONS["steps"]
    assert not [path for path in run.path.iterdir() if path.name.endswith(".tmp")]
