"""A command ends with one sentence that names the right file if another program changes a file that it reads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import featherback as fb
from featherback import models
from featherback.exports.formats import peft
from featherback.models.adapter import LoRA
from tests.cli.conftest import Command, Outcome
from tests.support.changing import CHANGES, changing, settle
from tests.support.tiers import some
from tests.support.tiny_chat import write_messages, write_tiny_chat

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a model, data and an adapter."""
    model = write_tiny_chat(tmp_path / "tiny.gguf")
    write_messages(tmp_path / "data.jsonl", 8)
    peft.FORMAT.save(LoRA(models.load(model), rank=2), tmp_path / "adapter")
    return tmp_path


def _commands(place: Path) -> dict[str, list[object]]:
    model, data, adapter, out = (place / name for name in ("tiny.gguf", "data.jsonl", "adapter", "out"))
    return {
        "evaluate": ["evaluate", model, "--data", data, "--adapter", adapter],
        "export": ["export", adapter, "--model", model, "--to", "mlx", "--out", out],
        "generate": ["generate", model, "--adapter", adapter, "--prompt", "a", "--max-tokens", "1"],
    }


def _refused(outcome: Outcome, file: Path) -> None:
    assert outcome.code == 2, outcome
    *_, last = outcome.err.splitlines()
    assert last.startswith(f"error: {file} was "), outcome
    assert "by another program" in last
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("name", some(["evaluate", "export", "generate"], 1))
def test_an_adapter(command: Command, place: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    arguments, file, out = _commands(place)[name], place / "adapter" / WEIGHTS, place / "out"
    good = file.read_bytes()
    with changing(monkeypatch, file, None, 0) as views:
        outcome = command(*arguments)
        assert outcome.code == 0, outcome
    shutil.rmtree(out, ignore_errors=True)
    for at in (0, len(views) - 1):
        for how in ("truncated to nothing", "overwritten with zeros", "written again"):
            file.write_bytes(good)
            with changing(monkeypatch, file, CHANGES[how], at):
                outcome = command(*arguments)
            _refused(outcome, file)
            assert not out.exists()


@pytest.mark.parametrize("start", ["adapter", "first"])
def test_what_a_run_continues(place: Path, monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    """An adapter, and the directory of a run."""

    def train(out: str, **options: object) -> object:
        data = str(place / "data.jsonl")
        return fb.train(str(place / "tiny.gguf"), data, place / out, steps=1, progress=False, **options)

    train("first", rank=2)
    file = place / start / WEIGHTS
    good = file.read_bytes()
    with changing(monkeypatch, file, None, 0) as views:
        train("before", start=str(place / start))
    for at in (-1, 0, len(views) - 1):
        for how in ("a hole", "overwritten with other bytes"):
            file.write_bytes(good)
            with changing(monkeypatch, file, CHANGES[how], at), pytest.raises(fb.FeatherbackError) as raised:
                train("out", start=str(place / start))
            assert str(raised.value).startswith(f"{file} was ")
            assert "by another program" in str(raised.value)
            assert not (place / "out").exists()
    file.write_bytes(good)
    train("out", start=str(place / start))


class _At(fb.Callback):
    """Changes a file at a step."""

    def __init__(self, step: int, change: Callable[[], None]) -> None:
        self._step, self._change = step, change

    def step(self, event: fb.Step) -> None:
        if event.step == self._step:
            self._change()


def _train(place: Path, *callbacks: fb.Callback, resume: bool = False) -> fb.Run:
    settings = {"steps": 4, "save_every": 1, "rank": 2, "progress": False, "keep_checkpoints": True}
    data = None if resume else str(place / "data.jsonl")
    return fb.train(
        str(place / "tiny.gguf"),
        data,
        place / "out",
        callbacks=callbacks,
        resume=resume,
        **({} if resume else settings),
    )


@pytest.mark.parametrize("file", ["tiny.gguf", "out/tokens/train.tokens"])
@pytest.mark.parametrize("how", [*CHANGES])
def test_the_files_of_a_training(place: Path, file: str, how: str) -> None:
    """The checkpoints that were written before stay, and the run can be resumed."""
    path, good = place / file, b""

    def change() -> None:
        nonlocal good
        good = path.read_bytes()
        CHANGES[how](path)

    settle(place / "tiny.gguf")
    with pytest.raises(fb.FeatherbackError, match=r"was (truncated|changed) by another program") as raised:
        _train(place, _At(2, change))
    assert str(raised.value).startswith(f"{path} was ")
    assert list((place / "out").glob("checkpoint-00000[12].fbc"))
    path.write_bytes(good)
    assert _train(place, resume=True).summary.steps == 4
