"""Checkpoints are intact or rejected with a reason, and a good one exists at every moment."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback.engine.host.paged import PagedArray
from featherback.errors import FeatherbackError
from featherback.runs import checkpoint
from featherback.runs.callback import Callback
from featherback.runs.events import Note, Step
from featherback.runs.run_directory import RunDirectory
from tests.runs.conftest import Start


def _flip(path: Path, at: float, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= bit
    path.write_bytes(content)


def _zero(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 256] = bytes(256)
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of the magic": (lambda path: _flip(path, 0), "is not a checkpoint"),
    "a bit of the parameters": (lambda path: _flip(path, 0.1), "checksum"),
    "a bit of a moment": (lambda path: _flip(path, 0.7, 128), "checksum"),
    "a zeroed part": (_zero, "checksum"),
    "torn": (lambda path: os.truncate(path, path.stat().st_size // 2), "its end is missing"),
    "a byte too few": (lambda path: os.truncate(path, path.stat().st_size - 1), "its end is missing"),
    "empty": (lambda path: path.write_bytes(b""), "is not a checkpoint"),
}


class _Notes(Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, event: Note) -> None:
        self.notes.append(event.text)


def _saved(run: str, step: int, stale: int = 0) -> checkpoint.State:
    return checkpoint.State(run, checkpoint.Progress(step, stale=stale), [step])


def _state_bits(path: Path) -> list[int]:
    """Return the offsets of all bytes of a checkpoint's state and footer."""
    content = path.read_bytes()
    begin = content.rindex(b'{"run"')
    return list(range(begin, len(content)))


@pytest.mark.parametrize(("harm", "says"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(
    start: Start, harm: Callable[[Path], object], says: str
) -> None:
    whole = start("whole", steps=6)
    run = start("parts", steps=6, save_every=2)
    newest, older = (run.path / f"checkpoint-00000{step}.fbc" for step in (6, 4))
    harm(newest)
    heard = _Notes()
    resumed = start("parts", heard, steps=6, save_every=2, resume=True)
    (note,) = [note for note in heard.notes if "checkpoint" in note]
    assert newest.name in note
    assert says in note
    adapters = [(path / "adapter_model.safetensors").read_bytes() for path in (resumed.path, whole.path)]
    assert adapters[0] == adapters[1]
    assert older.exists()


@pytest.mark.parametrize("change", [lambda path: os.truncate(path, 40), _zero], ids=["truncated", "zeroed"])
def test_a_checkpoint_that_changes_after_its_checksum_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    array = PagedArray(2, 3000)
    for row in range(2):
        array.write(row, np.arange(1, 3001, dtype=np.float32))
    path = checkpoint.save(tmp_path, {"a": array}, _saved("run", 3))
    write = PagedArray.write

    def changed_first(self: PagedArray, *values: Any) -> None:
        change(path)
        write(self, *values)

    monkeypatch.setattr(PagedArray, "write", changed_first)
    with pytest.raises(FeatherbackError, match=f"No checkpoint .*: {path.name} (was changed|has a state)"):
        checkpoint.restore(tmp_path, "run", {"a": array})


def test_every_bit_of_the_state_counts(tmp_path: Path) -> None:
    """A change of step, position or evaluations is always detected."""
    array = {"parameters": PagedArray(1, 4)}
    state = _saved("me", 3)
    checkpoint.save(tmp_path, array, state)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    for place in _state_bits(path):
        for bit in (1, 16, 128):
            bad = bytearray(good)
            bad[place] ^= bit
            path.write_bytes(bad)
            with pytest.raises(FeatherbackError, match=re.escape(path.name)):
                checkpoint.restore(tmp_path, "me", array)
    path.write_bytes(good)
    assert checkpoint.restore(tmp_path, "me", array)[0] == replace(state, arrays=[("parameters", 1, 4)])


def test_without_a_good_one_there_is_one_sentence(start: Start) -> None:
    run = start(steps=4, save_every=2)
    for path in run.path.glob("*.fbc"):
        _flip(path, 0.5)
    with pytest.raises(FeatherbackError) as raised:
        start(steps=5, resume=True)
    text = str(raised.value)
    assert text.startswith(f"No checkpoint of {run.path} can be used: checkpoint-000004.fbc is damaged")
    assert "checkpoint-000002.fbc is damaged" in text
    assert text.endswith("delete them to train from the start.")
    assert "\n" not in text


def test_another_runs_checkpoint_is_refused(start: Start) -> None:
    run, other = start(steps=2), start("other", steps=2, seed=1)
    shutil.copy(other.path / "checkpoint-000002.fbc", run.path / "checkpoint-000002.fbc")
    with pytest.raises(FeatherbackError, match="belongs to a run with other options, another model or other data"):
        start(steps=3, resume=True)


def test_two_are_kept(start: Start) -> None:
    run = start(steps=7, save_every=2)
    assert sorted(p.name for p in run.path.glob("*.fbc")) == ["checkpoint-000006.fbc", "checkpoint-000007.fbc"]


def test_saved_again_at_one_step_there_is_no_moment_without_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after every call that changes the directory, the checkpoint can be restored."""
    array = {"parameters": PagedArray(2, 3)}
    array["parameters"].write(0, np.arange(3, dtype=np.float32))
    checkpoint.save(tmp_path, array, _saved("me", 5, stale=1))
    looked = []

    def look(name: str) -> None:
        state, refused = checkpoint.restore(tmp_path, "me", {"parameters": PagedArray(2, 3)})
        assert state is not None
        assert not refused
        looked.append((name, state.progress.stale))

    def looking(original: Any) -> Any:
        def call(*values: Any, **options: Any) -> Any:
            look(original.__name__)
            result = original(*values, **options)
            look(original.__name__)
            return result

        return call

    for name in ("replace", "rename", "unlink", "rmdir", "fsync"):
        monkeypatch.setattr(os, name, looking(getattr(os, name)))
    checkpoint.save(tmp_path, array, _saved("me", 5, stale=2))
    assert ("replace", 1) in looked
    assert ("replace", 2) in looked


def test_parts_of_files_that_killed_runs_left_are_removed(start: Start) -> None:
    run = start(steps=1)
    left = [
        run.path / name
        for name in (".checkpoint-000009.fbc.123-0123456789abcdef.tmp", ".run.json.7-0123456789abcdef.tmp")
    ]
    for path in left:
        path.write_bytes(b"part")
    mine = run.path / ".notes.tmp"
    mine.write_bytes(b"kept")
    start(steps=2, resume=True)
    assert not any(path.exists() for path in left)
    assert mine.exists()


def test_a_full_disk_leaves_the_last_checkpoint_and_the_run_goes_on_later(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = start("whole", steps=4)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:

        class Full(Callback):
            def step(self, event: Step) -> None:
                if event.step == 4:
                    patched.setattr(os, "fsync", full)

        with pytest.raises(FeatherbackError, match="No space left on device"):
            start("parts", Full(), steps=4, save_every=2)
    run = start("parts", steps=4, resume=True)
    assert (run.path / "adapter_model.safetensors").read_bytes() == (
        whole.path / "adapter_model.safetensors"
    ).read_bytes()
    assert RunDirectory.open(run.path).record.status == "finished"


def test_the_disk_is_asked_before_the_first_step(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 10_000

    with monkeypatch.context() as patched:
        patched.setattr("featherback.runs.trainer.disk_usage", lambda _: Usage)
        with pytest.raises(FeatherbackError, match=r"has 0\.0 MB free, but the run needs up to 0\.\d MB"):
            start(steps=2)
    run = start(steps=2)
    assert len(list(run.metrics())) == 2
