"""Replaying a zeroth-order run from its options and its log."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from featherback.cli.app import run as command
from featherback.errors import FeatherbackError
from featherback.runs.callback import Callback
from featherback.runs.events import Note, Step
from featherback.runs.replay import exported_step, replay
from featherback.runs.run_directory import RunDirectory
from tests.runs import runs
from tests.runs.conftest import Start

LOGGED: dict[str, Any] = {"method": "mezo", "log_directions": True, "optimizer": "sgd", "steps": 6}
FILES = ("adapter_model.safetensors", "adapter_config.json")
HEAD, STEP = 16, 28  # bytes of the log: its head, and a step of one direction


class At(Callback):
    """Raises at the end of a step."""

    def __init__(self, step: int) -> None:
        self._step = step
        self.notes: list[str] = []

    def step(self, event: Step) -> None:
        if event.step == self._step:
            raise RuntimeError("planted")

    def note(self, event: Note) -> None:
        self.notes.append(event.text)


def kit(run: RunDirectory, place: Path) -> RunDirectory:
    """Copy only the files of a run that a replay needs."""
    place.mkdir()
    for name in ("run.json", "directions.log"):
        shutil.copy(run.path / name, place)
    if (run.path / "start").exists():
        shutil.copytree(run.path / "start", place / "start")
    return RunDirectory.open(place)


def check(run: RunDirectory, tmp_path: Path) -> None:
    alone, again = kit(run, tmp_path / "kit"), tmp_path / "again"
    replay(alone, again)
    for name in FILES:
        assert (again / name).read_bytes() == (run.path / name).read_bytes(), name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"directions": 3, "accumulate": 2, "max_grad_norm": 0.1},
        {"optimizer": "adamw", "weight_decay": 0.1, "warmup": 2, "loraplus_ratio": 4.0},
        {"optimizer": "adamw8bit"},
        {"method": "sparse_mezo", "threshold_every": 2},
        {"dora": True, "seed": 5},
        {"eval_seed": 9, "eval_every": 2, "learning_rate": 0.3},
    ],
    ids=str,
)
def test_the_same_bits(start: Start, tmp_path: Path, options: dict[str, Any]) -> None:
    check(start(**{**LOGGED, **options}), tmp_path)


def test_of_a_run_whose_last_adapter_is_the_better(start: Start, tmp_path: Path) -> None:
    run = start(**LOGGED, eval_seed=9, eval_every=6, learning_rate=0.03, seed=1)
    last = RunDirectory.open(run.path).record["evaluations"][-1]
    assert (last["step"], last["mean"]) == (6, False)
    check(run, tmp_path)


def test_of_a_run_that_starts_from_another(start: Start, tmp_path: Path) -> None:
    first = start("first", steps=2)
    check(start("second", start=str(first.path), rank=None, **LOGGED), tmp_path)


@pytest.mark.parametrize("method", ["mezo", "sparse_mezo"])
def test_after_a_crash_and_with_more_steps(start: Start, tmp_path: Path, method: str) -> None:
    """The log's steps after the checkpoint are written again, and the learning rates of the first part are kept."""
    options = {**LOGGED, "method": method, "save_every": 2}
    with pytest.raises(RuntimeError, match="planted"):
        start(**{**options, "steps": 5}, reporter=At(3))
    start(**{**options, "steps": 5}, resume=True)
    run = start(**{**options, "steps": 8}, resume=True)
    assert (run.path / "directions.log").stat().st_size == HEAD + 8 * STEP
    check(run, tmp_path)


@pytest.mark.parametrize("method", ["mezo", "sparse_mezo"])
def test_after_a_kill(tiny_path: Path, tmp_path: Path, start: Start, method: str) -> None:
    """In a process of its own; the resumed run is, bit for bit, one that was left alone."""
    options: dict[str, Any] = {"method": method, "optimizer": "sgd", "steps": 60, "save_every": 3, "rank": 4}
    options |= {"method_options": {"log_directions": True}, "threads": 1, "learning_rate": 1e-2}
    run = runs.prepared(tiny_path, tmp_path / "run", **options)
    run.release()
    process = runs.worker(run.path)
    runs.wait_for(lambda: process.poll() == 0 or len(list(run.path.glob("checkpoint-*"))) == 2, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=runs.PATIENCE)
    with open(run.path / "directions.log", "ab") as log:
        log.write(b"\7\0\0")  # a step that was being written
    run = runs.resumed(tiny_path, tmp_path / "run")
    run.release()
    _, err = runs.worker(run.path).communicate(timeout=runs.PATIENCE)
    run = RunDirectory.open(run.path)
    assert run.record["status"] == "finished", err
    check(run, tmp_path)
    whole = runs.prepared(tiny_path, tmp_path / "whole", **options)
    whole.release()
    runs.worker(whole.path).communicate(timeout=runs.PATIENCE)
    for name in (FILES[0], "directions.log", f"checkpoint-{options['steps']:06d}.fbc"):
        assert (whole.path / name).read_bytes() == (run.path / name).read_bytes(), name


def test_any_step(start: Start, tmp_path: Path) -> None:
    short = start("short", **{**LOGGED, "steps": 3}, schedule="constant")
    long = start("long", **{**LOGGED, "steps": 6}, schedule="constant")
    replay(long, tmp_path / "third", step=3)
    assert (tmp_path / "third" / FILES[0]).read_bytes() == (short.path / FILES[0]).read_bytes()
    assert exported_step(long) == 6


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (HEAD + 5 * STEP, "is truncated: it ends after step 5 of 6"),
        (HEAD + 5 * STEP + 11, "is truncated: it ends within step 6"),
        (HEAD + 5 * STEP + 25, "is truncated: it ends within step 6"),
        (HEAD, "is truncated: it ends after step 0 of 6"),
        (HEAD - 1, "is not a directions.log file"),
    ],
)
def test_a_truncated_log_is_refused(start: Start, tmp_path: Path, left: int, said: str) -> None:
    run = start(**LOGGED)
    os.truncate(run.path / "directions.log", left)
    with pytest.raises(FeatherbackError, match=said):
        replay(run, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_what_else_is_refused(start: Start, tmp_path: Path) -> None:
    run = start(**LOGGED)
    log = run.path / "directions.log"
    whole = log.read_bytes()

    def refused(said: str, **options: Any) -> None:
        with pytest.raises(FeatherbackError, match=said):
            replay(RunDirectory.open(run.path), tmp_path / "again", **options)

    log.write_bytes(whole[: HEAD + STEP + 20] + b"x" + whole[HEAD + STEP + 21 :])
    refused("is damaged after step 1")
    log.write_bytes(whole[:8] + b"00000000" + whole[16:])
    refused("belongs to a run with other options or another model")
    log.write_bytes(whole[:HEAD] + whole[HEAD + STEP :])
    refused("is damaged after step 0")
    log.write_bytes(whole)
    refused("is truncated: it ends after step 6 of 7", step=7)
    run.update(model="another")
    refused("have changed since")
    log.unlink()
    refused("has no directions.log: only a run with --log-directions can be replayed")
    exact = start("exact", steps=1)
    with pytest.raises(FeatherbackError, match="was trained with --method mesp, which is not zeroth-order"):
        replay(exact, tmp_path / "again")
    assert command(["replay", str(exact.path), "--out", str(tmp_path / "again")]) == 2


def test_a_log_that_lost_steps_is_said_when_the_run_goes_on(start: Start) -> None:
    run = start(**LOGGED)
    os.truncate(run.path / "directions.log", HEAD + 2 * STEP)
    heard = At(0)
    start(**{**LOGGED, "steps": 7}, resume=True, reporter=heard)
    assert any("ends after step 2 of 6, so the run cannot be replayed" in note for note in heard.notes)
