"""A command that is killed at any moment, while it prepares or trains, can be repeated and ends with the same bits."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from featherback.runs.run_directory import RunDirectory
from tests.runs.runs import PATIENCE
from tests.support import tiers

KILLS = int(os.environ.get("FEATHERBACK_KILLS", "3"))
TASKS = {
    "answers": [],
    "preferences": ["--objective", "dpo"],
    "distillation": ["--teacher", "MODEL", "--teacher-top-k", "4"],
}


def _command(model: Path, data: Path, out: Path, options: list[str]) -> list[str]:
    words = ["train", model, "--data", data, "--out", out, "--steps", "8", "--seq-len", "64", "--save-every", "2"]
    fixed = ["--memory", "120MB", "--threads", "1", "--eval-share", "0", "--samples", "0"]
    given = [str(model) if word == "MODEL" else word for word in options]
    return [sys.executable, "-m", "featherback", *map(str, words), *fixed, *given]


def _data(folder: Path, task: str) -> Path:
    path = folder / f"{task}.jsonl"
    keys = ("prompt", "chosen", "rejected") if task == "preferences" else ("prompt", "completion")
    rows = [dict(zip(keys, (f"What is {i} plus {i}?", f"It is {2 * i}.", "No."), strict=False)) for i in range(30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.full("whole commands, each killed and repeated")
@pytest.mark.parametrize("number", tiers.some(range(KILLS), 1))
@pytest.mark.parametrize("task", TASKS)
def test_a_killed_command_ends_as_if_it_had_not_been(chat_model: Path, tmp_path: Path, task: str, number: int) -> None:
    data = _data(tmp_path, task)
    began = time.monotonic()
    whole = _command(chat_model, data, tmp_path / "whole", TASKS[task])
    subprocess.run(whole, check=True, capture_output=True, timeout=PATIENCE)
    takes, out = time.monotonic() - began, tmp_path / "killed"
    command, kills = _command(chat_model, data, out, TASKS[task]), random.Random(number)
    for _ in range(2):
        process = subprocess.Popen([*command, *_again(out)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(kills.uniform(0, takes))
        process.kill()
        process.communicate(timeout=PATIENCE)
    done = subprocess.run([*command, *_again(out)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    adapters = [(tmp_path / run / "adapter_model.safetensors").read_bytes() for run in ("whole", "killed")]
    assert adapters[0] == adapters[1]
    assert RunDirectory.open(out).record.status == "finished"
    assert not [path for path in out.rglob("*") if path.name.endswith(".tmp")]


def _again(out: Path) -> list[str]:
    return ["--resume"] if (out / "run.json").exists() else []
