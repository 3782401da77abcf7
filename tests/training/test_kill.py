"""Runs killed with SIGKILL, wherever they are, end in the adapter of a run that was left alone.

`make test-kill` kills a hundred; FEATHERBACK_KILLS says how many.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.training import runs

from featherback.training.run_directory import RunDirectory

KILLS = int(os.environ.get("FEATHERBACK_KILLS", "10"))
OPTIONS: dict[str, Any] = {"steps": 40, "save_every": 2, "rank": 4, "learning_rate": 1e-2, "threads": 1}

# A training process that kills itself at call number `at` of those that write checkpoints, adapters and records.
DIES = """
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

for name in ("fsync", "replace", "unlink"):
    setattr(os, name, dying(getattr(os, name)))
from featherback.training import worker
sys.exit(worker.main(sys.argv[1:]))
"""


def _adapter(run: Path) -> bytes:
    return (run / "adapter_model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbs."""
    run = runs.prepared(tiny_path, tmp_path_factory.mktemp("whole") / "run", **OPTIONS)
    run.release()
    process = runs.worker(run.path)
    _, err = process.communicate(timeout=runs.PATIENCE)
    assert process.returncode == 0, err
    return run.path


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_run_ends_as_if_it_had_not_been(
    tiny_path: Path, tmp_path: Path, whole: Path, number: int
) -> None:
    """Even numbers die inside a write, odd ones at a random moment; each is killed up to three times."""
    chance = random.Random(number)
    run = runs.prepared(tiny_path, tmp_path / "run", **OPTIONS)
    killed = 0
    for again in range(1 + number % 3):
        if again:
            run = runs.resumed(tiny_path, tmp_path / "run")
        run.release()
        if number % 2 == 0:
            process = runs.worker(run.path, DIES, str(chance.randrange(1, 150)))
        else:
            process = runs.worker(run.path)
            if chance.random() < 0.7:
                runs.wait_for(lambda p=process, r=run: p.poll() == 0 or list(r.path.glob("work")), process)
            time.sleep(chance.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=runs.PATIENCE)
        killed += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
    run = runs.resumed(tiny_path, tmp_path / "run")
    run.release()
    process = runs.worker(run.path)
    _, err = process.communicate(timeout=runs.PATIENCE)
    assert process.returncode == 0, err
    assert _adapter(run.path) == _adapter(whole)
    assert RunDirectory.open(run.path).record["status"] == "finished"
    assert len(list(run.metrics())) == OPTIONS["steps"]
    assert not [path for path in run.path.iterdir() if path.name.endswith(".tmp")]
    assert killed or number % 2
