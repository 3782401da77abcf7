"""`featherback train` on preferences: all its programs stay within the budget, and a pass that is stopped goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.support.budget import least_mb
from tests.support.tiny_chat import write_tiny_chat

PATIENCE = 300


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("model") / "chat.gguf")


@pytest.fixture
def trains(model: Path, tmp_path: Path) -> list[str]:
    data = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"{i}?", "chosen": f"Sure: {i}", "rejected": f"No {i}!"} for i in range(60)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("train", model, "--data", data, "--objective", "dpo", "--seq-len", 64, "--batch-size", 4, "--steps", 2)
    return [sys.executable, "-m", "featherback", *map(str, words), "--threads", "1"]


def record(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "run.json").read_text())
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a program's peak")
def test_the_reference_pass_keeps_the_budget(trains: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [*trains, "--out", str(out)]
    least = least_mb(words)
    done = subprocess.run([*words, "--memory", f"{least}MB"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = record(out)
    assert 0 < found["reference"]["peak_rss_mb"] <= least
    assert found["summary"]["peak_rss_mb"] <= least
    assert found["reference"]["examples"] == found["data"]["train"]["examples"]  # those that two steps may use


def test_a_dry_run_computes_no_reference(command: Command, trains: list[str], tmp_path: Path) -> None:
    done = command(*trains[3:], "--out", tmp_path / "run", "--dry-run")
    assert done.code == 0, done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.full("runs/test_preferences.py stops the pass in the tests' process")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_reference_pass_that_is_stopped_goes_on(trains: list[str], tmp_path: Path, how: signal.Signals) -> None:
    """It is stopped once the file has its first values."""
    out = tmp_path / "run"
    process = subprocess.Popen([*trains, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    file, until = out / "tokens" / "train.logps", time.monotonic() + PATIENCE
    while process.poll() is None and not (file.exists() and file.stat().st_size > 64):
        assert time.monotonic() < until
        time.sleep(0.002)
    os.kill(process.pid, how)
    process.communicate(timeout=PATIENCE)
    assert not (out / "adapter_model.safetensors").exists()
    again = subprocess.run([*trains, "--out", str(out), "--resume"], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert record(out)["status"] == "finished"


@pytest.mark.parametrize("kind", ["inspect", "inspect --model", "evaluate"])
def test_the_option_that_a_message_names_exists(
    command: Command, trains: list[str], model: Path, tmp_path: Path, kind: str
) -> None:
    data = str(tmp_path / "pairs.jsonl")
    words = {
        "inspect": ["inspect", data],
        "inspect --model": ["inspect", data, "--model", str(model)],
        "evaluate": ["evaluate", str(model), "--data", data],
    }[kind]
    done = command(*words)
    assert done.code == 2
    assert "this is a preference pair" in done.err
    (option,) = re.findall("add (--objective dpo)", done.err)
    done = command(*words, *option.split())
    assert done.code == 0, done.err
    assert "pairs" in done.out
