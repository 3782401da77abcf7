"""Every program of `--log-to`, as it is published: a run that it records is trained, resumed, reported and exported."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from featherback.runs.loggers import LOGGERS
from tests.support.tiny_chat import write_tiny_chat

pytestmark = pytest.mark.full("it starts a dozen processes, and programs that the default tests do not need")
DATA = "".join(json.dumps({"prompt": f"What is {i}?", "completion": f"A number, {i}."}) + "\n" for i in range(12))


def _run(words: list[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "featherback", *words], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _losses(run: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines}


def _recorded(name: str, run: Path, folder: Path) -> dict[int, float]:
    """Return step -> loss, as the program's own reader gives them."""
    if name == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(run / "logs" / "tensorboard"))
        events.Reload()
        return {each.step: each.tensor_proto.float_val[0] for each in events.Tensors("train/loss")}
    if name == "wandb":
        files = sorted((run / "logs" / "wandb").glob("offline-run-*/*.wandb"))
        return {step: loss for file in files for step, loss in _wandb_losses(file.read_bytes())}
    import sqlite3

    (file,) = folder.glob("*.db")
    with sqlite3.connect(file) as base:
        rows = base.execute("select step, metrics from metrics").fetchall()
    values = [(step, json.loads(metrics)) for step, metrics in rows]
    return {step: each["train/loss"] for step, each in values if "train/loss" in each}


def _wandb_losses(data: bytes) -> Iterator[tuple[int, float]]:
    """Yield step and loss of a W&B file of less than a block: seven bytes, then records of checksum, size and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    place = 7
    while place < len(data):
        _, size, kind = struct.unpack_from("<IHB", data, place)
        assert kind == 1  # a whole record
        record = Record()
        record.ParseFromString(data[place + 7 : place + 7 + size])
        place += 7 + size
        for item in record.history.item:
            if (item.key or item.nested_key[0]) == "train/loss":
                yield record.history.step.num, json.loads(item.value_json)


@pytest.mark.parametrize("name", LOGGERS.names)
def test_a_recorded_run_is_trained_resumed_and_used(name: str, tmp_path: Path) -> None:
    model, data, run = write_tiny_chat(tmp_path / "model.gguf"), tmp_path / "data.jsonl", tmp_path / "run"
    data.write_text(DATA)
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "TRACKIO_DIR": str(tmp_path / "trackio")}
    environment.pop("XDG_CACHE_HOME", None)
    training = ["train", str(model), "--data", str(data), "--out", str(run), "--log-to", name]
    _run([*training, "--steps", "3", "--keep-checkpoints"], environment)
    _run([*training, "--steps", "5", "--resume"], environment)
    losses = _losses(run)
    assert sorted(losses) == [1, 2, 3, 4, 5]
    assert _recorded(name, run, tmp_path / "trackio") == pytest.approx(losses, rel=1e-6)
    for words in (
        ["inspect", str(run)],
        ["report", str(run)],
        ["evaluate", str(model), "--data", str(data), "--adapter", str(run)],
        ["generate", str(model), "--adapter", str(run), "--prompt", "What is 3?", "--max-tokens", "2"],
        ["export", str(run), "--to", "gguf", "--out", str(tmp_path / "out.gguf")],
    ):
        _run(words, environment)
    assert (tmp_path / "out.gguf").exists()
