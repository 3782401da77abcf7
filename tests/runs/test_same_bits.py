"""The same command gives the same bits, even if the processes measure other times and sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.budget import least_mb
from tests.support.tiny_chat import N_VOCAB, byte_level_metadata, write_messages
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

_PERTURBED = """
import os, random, time

_drawn, _real, _last, _now = random.Random(os.environ["PERTURBED"]), time.perf_counter, 0.0, 0.0
_ballast = bytearray(b"x" * _drawn.randrange(400_000))

def perf_counter():
    global _last, _now
    _now += (_real() - _last) * 3 ** _drawn.uniform(-1, 1)
    _last = _real()
    return _now

time.perf_counter = perf_counter
"""
"""A sitecustomize.py: what is timed takes a third of its time to three times as long, and processes differ in size."""


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for which a budget can keep part of the intermediates."""
    shape = tiny(TINY_LLAMA, vocab_size=N_VOCAB, hidden_size=256, intermediate_size=1024, num_hidden_layers=6)
    return write_tiny(tmp_path_factory.mktemp("model") / "wide.gguf", shape, metadata=byte_level_metadata())


def _train(model: Path, folder: Path, out: str, *more: str) -> list[str]:
    words = ["--out", str(folder / out), "--data", str(folder / "data.jsonl")]
    words += ["--seq-len", "96", "--batch-size", "4", "--steps", "2", "--samples", "0"]
    return [sys.executable, "-m", "featherback", "train", str(model), *words, *more]


def _command(folder: Path, command: list[str], seed: int) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "FEATHERBACK_CACHE": str(folder / "cache"),
        "PERTURBED": str(seed),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def _decided(plan: dict[str, Any]) -> dict[str, Any]:
    """Return a plan without the fields that are only displayed. The least budget is that of the whole command, whose
    programs are measured.
    """
    shown = ("seconds", "footprint", "least")
    return {name: value for name, value in plan.items() if not any(word in name for word in shown)}


@pytest.mark.full("five whole commands; test_a_run_is_repeated_to_the_bit_from_another_folder stands for it")
def test_the_same_command_gives_the_same_bits(wide_model: Path, tmp_path: Path) -> None:
    """The plan keeps a part of what it could, and in what arithmetic is left open."""
    (tmp_path / "sitecustomize.py").write_text(_PERTURBED)
    write_messages(tmp_path / "data.jsonl", 40)
    least = least_mb(_train(wide_model, tmp_path, "least"))
    memory = ("--memory", f"{least + 3}MB")  # processes differ in size by up to 2 MB
    dry = _train(wide_model, tmp_path, "dry", *memory, "--dry-run", "--json")
    shown = json.loads(_command(tmp_path, dry, 1).stdout)
    plans, adapters = [_decided(shown["plan"])], []
    for seed in (2, 3):
        out = tmp_path / f"run-{seed}"
        _command(tmp_path, _train(wide_model, tmp_path, out.name, *memory), seed)
        record = json.loads((out / "run.json").read_text())
        plans.append(_decided(record["plan"]))
        assert shown["steps"] == record["steps"]
        adapters.append((out / "adapter_model.safetensors").read_bytes())
    assert plans == plans[:1] * 3  # --dry-run says what is done
    assert sum(plans[0]["keep"].values()) > 0
    assert adapters[0] == adapters[1]


def test_another_number_of_threads_gives_the_same_bits(wide_model: Path, tmp_path: Path) -> None:
    """Without a budget, plans do not depend on the threads, and neither do sums."""
    write_messages(tmp_path / "data.jsonl", 40)
    adapters = set()
    for threads in ("1", "3"):
        _command(tmp_path, _train(wide_model, tmp_path, threads, "--threads", threads), 1)
        adapters.add((tmp_path / threads / "adapter_model.safetensors").read_bytes())
    assert len(adapters) == 1
