"""Runs with --layers keep the hidden states that enter the lowest trained layer, and give the same bits as without."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback.data.token_file import TokenFile
from featherback.engine.backend.counting import Blank
from featherback.engine.host.token_rows import TokenRows
from featherback.methods.entry import EntryStates
from featherback.methods.memory.plan import Plan
from featherback.nn.block import Block
from featherback.nn.context import Context
from featherback.runs import entry, trainer
from featherback.runs.callback import Callback
from featherback.runs.events import Note, Step
from featherback.runs.run_directory import RunDirectory
from tests.runs import runs
from tests.runs.conftest import Start
from tests.support.tiers import some

ADAPTER = "adapter_model.safetensors"
OPTIONS: dict[str, Any] = {"layers": "last:1", "epochs": 3, "batch_tokens": 48}


class Notes(Callback):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, event: Note) -> None:
        self.texts.append(event.text)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[EntryStates]:
    """The states that runs have kept, in order."""
    found: list[EntryStates] = []

    def counted(*values: Any) -> EntryStates | None:
        states = entry.entry_states(*values)
        found.extend([] if states is None else [states])
        return states

    monkeypatch.setattr(trainer, "entry_states", counted)
    return found


def same(run: RunDirectory, other: RunDirectory) -> None:
    assert [line["loss"] for line in run.metrics()] == [line["loss"] for line in other.metrics()]
    assert (run.path / ADAPTER).read_bytes() == (other.path / ADAPTER).read_bytes()
    records = [RunDirectory.open(each.path).record.evaluations for each in (run, other)]
    assert records[0] == records[1]


def test_the_same_run(start: Start, made: list[EntryStates], monkeypatch: pytest.MonkeyPatch) -> None:
    """With held-out data, whose loss is measured several times."""
    ran: list[Block] = []
    forward = Block.forward

    def counted(block: Block, ctx: Context, x: Any, *rest: Any) -> None:
        if not isinstance(x, Blank):  # a dry run
            ran.append(block)
        forward(block, ctx, x, *rest)

    monkeypatch.setattr(Block, "forward", counted)
    notes = Notes()
    kept = start("kept", notes, eval_seed=1, eval_every=3, **OPTIONS)
    few = len(ran)
    every = start("every", eval_seed=1, eval_every=3, hidden_states="recompute", **OPTIONS)
    same(kept, every)
    assert few < len(ran) - few
    assert len(made) == 1
    assert made[0].read > made[0].computed
    assert not kept.states.exists()
    assert any(f"hidden states before layer 1 are kept in {kept.states}" in text for text in notes.texts)


@pytest.mark.parametrize("options", [{"epochs": None, "steps": 2}, {"epochs": 1}, {"layers": "all"}], ids=str)
def test_states_that_nothing_would_read_are_not_kept(
    start: Start, made: list[EntryStates], options: dict[str, Any]
) -> None:
    start("run", **{**OPTIONS, **options})
    assert not made


def test_more_steps_than_an_epoch_has(start: Start, made: list[EntryStates]) -> None:
    start("run", layers="last:1", steps=20, batch_tokens=48)
    assert made[0].read > made[0].computed


class Stopped(Callback):
    """Ends the process's training after a step, as a first signal does."""

    def __init__(self, step: int) -> None:
        self.last = step

    def step(self, event: Step) -> None:
        if event.step == self.last:
            os.kill(os.getpid(), signal.SIGINT)


def interrupted(start: Start, name: str = "parts") -> RunDirectory:
    run = start(name, Stopped(7), **OPTIONS)
    assert RunDirectory.open(run.path).record.status == "interrupted"
    assert (run.states / "train.rows").exists()
    return run


def test_an_interrupted_run_uses_its_states_again(start: Start, made: list[EntryStates]) -> None:
    whole = start("whole", **OPTIONS)
    interrupted(start)
    before = made[-1].computed
    parts = start("parts", resume=True, **OPTIONS)
    assert before > 0 == made[-1].computed
    same(parts, whole)
    assert not parts.states.exists()


@pytest.mark.parametrize("how", ["a bit", "truncated", "another key", "gone", "a folder"])
def test_damaged_states_are_computed_again(start: Start, made: list[EntryStates], how: str) -> None:
    whole, run = start("whole", **OPTIONS), interrupted(start)
    path, notes = run.states / "train.rows", Notes()
    content = bytearray(path.read_bytes())
    if how == "a bit":
        content[-3] ^= 16
    elif how == "another key":
        content[10] ^= 1
    path.write_bytes(content[: -9 if how == "truncated" else None])
    if how in ("gone", "a folder"):
        shutil.rmtree(run.states)
    if how == "a folder":
        path.mkdir(parents=True)
    parts = start("parts", notes, resume=True, **OPTIONS)
    same(parts, whole)
    said = " ".join(notes.texts)
    if how == "a folder":
        assert "are not kept, so all layers run in every epoch" in said
        return
    assert made[-1].computed > 0
    if how != "gone":
        assert ("is damaged" if how == "a bit" else "does not fit this run") in said


def test_another_layer_is_another_key(start: Start, tiny_path: Path) -> None:
    """Fault: states of another layer, compute or plan would be read."""
    keys = set()
    run = interrupted(start)
    file = TokenFile(run.tokens / "train.tokens")
    for lowest, plan in ((1, Plan(tokens=8)), (2, Plan(tokens=8)), (1, Plan(tokens=8, compute="fp32"))):
        keys.add(entry._key(run, plan, lowest, file))
    assert len(keys) == 3


def test_no_room(start: Start, made: list[EntryStates], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "states_bytes", lambda files, width: 10**15)
    notes = Notes()
    start("run", notes, **OPTIONS)
    assert not made
    assert any("not kept, so all layers run in every epoch: they need 1000000000.0 MB" in text for text in notes.texts)


def test_a_ram_disk(start: Start, made: list[EntryStates], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "is_ram_disk", lambda path: True)
    notes = Notes()
    start("run", notes, **OPTIONS)
    assert not made
    assert any("is on a RAM disk" in text for text in notes.texts)


def test_a_disk_that_fails_at_the_start(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(TokenRows, "__init__", failing)
    notes = Notes()
    start("run", notes, **OPTIONS)
    assert any("cannot be written (Input/output error)" in text for text in notes.texts)


def test_dropout_above(start: Start, made: list[EntryStates]) -> None:
    """Nothing is dropped below the lowest trained layer."""
    runs_made = [start(each, lora_dropout=0.2, hidden_states=each, **OPTIONS) for each in ("disk", "recompute")]
    same(*runs_made)
    assert made[0].read


@pytest.mark.parametrize("number", some(range(4), 1))
def test_killed_at_any_moment(tiny_path: Path, tmp_path: Path, number: int) -> None:
    """A process that dies while it writes states leaves rows that are not used, and the run ends with the same bits."""
    options: dict[str, Any] = {"layers": "last:1", "epochs": 4, "learning_rate": 1e-2, "save_every": 3}
    whole = runs.finished(runs.prepared(tiny_path, tmp_path / "whole", **options))
    again = runs.killed_and_finished(number, tiny_path, tmp_path / "again", ("pwrite",), 12, 0.2, **options)
    same(again, whole)
    assert not np.isnan([line["loss"] for line in again.metrics()]).any()
