"""What a finished run keeps, and what resuming it does."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import featherback as fb
from featherback.cli.app import run as command
from featherback.errors import FeatherbackError
from featherback.runs import checkpoint
from featherback.runs.preparation import resume_run
from featherback.runs.run_directory import RunDirectory
from featherback.runs.trainer import train_run
from tests.runs.conftest import Start
from tests.runs.test_trainer import _At, _crash, _interrupt, _Notes
from tests.support.tiny_chat import write_messages, write_tiny_chat

WHOLE: dict[str, Any] = {"train": "full", "rank": None, "optimizer": "adamw", "learning_rate": 1e-3}
EARLY: dict[str, Any] = {"eval_seed": 9, "eval_every": 1, "patience": 2, "learning_rate": 0.3, "steps": 40}
RECORDS = {"metrics.jsonl", "report.html", "loss.svg", "run.json", "run.yaml", "tokens"}
RESULTS = {"lora": {"adapter_config.json", "adapter_model.safetensors"}, "full": {"model.gguf"}}


def _names(run: RunDirectory) -> set[str]:
    return {path.name for path in run.path.iterdir()}


@pytest.mark.parametrize(("trained", "options"), [("lora", {}), ("full", WHOLE)])
def test_a_finished_run_holds_its_result_and_its_records(start: Start, trained: str, options: dict[str, Any]) -> None:
    kept = start("kept", steps=3, **options)
    run = start("run", steps=3, keep_checkpoints=False, **options)
    assert _names(run) == RECORDS | RESULTS[trained]
    assert {name.partition("-")[0] for name in _names(kept) - _names(run)} == {
        "checkpoint",
        *(["weights"] if trained == "full" else []),
    }
    for name in RESULTS[trained]:
        assert (run.path / name).read_bytes() == (kept.path / name).read_bytes()


def _stopped_early(start: Start) -> RunDirectory:
    heard = _Notes()
    run = start(reporter=heard, keep_checkpoints=False, **EARLY)
    assert RunDirectory.open(run.path).record.status == "stopped early"
    assert any(
        f"note: {run.path} keeps " in note and "of checkpoints, from which the run can be resumed" in note
        for note in heard.notes
    )
    return run


@pytest.mark.parametrize("ended", ["interrupted", "failed", "stopped early"])
def test_a_run_with_steps_left_goes_on_from_its_checkpoint(
    start: Start, tiny_path: Path, tmp_path: Path, ended: str
) -> None:
    if ended == "stopped early":
        run = _stopped_early(start)
    elif ended == "interrupted":
        run = start(reporter=_At(2, _interrupt), steps=4, keep_checkpoints=False)
    else:
        with pytest.raises(RuntimeError, match="planted"):
            start(reporter=_At(2, _crash), steps=4, save_every=1, keep_checkpoints=False)
        run = RunDirectory.open(tmp_path / "run")
    done = checkpoint.latest_step(run.path)
    assert done
    steps = done + 1 if ended == "stopped early" else 4
    assert train_run(resume_run({"model": str(tiny_path), "out": str(run.path), "steps": steps})) == "finished"
    assert len(list(run.metrics())) == steps
    assert checkpoint.latest(run.path) is None


@pytest.mark.parametrize(
    ("options", "onward"), [({}, "train {model} --from {run}"), (WHOLE, "train {run} --train full")]
)
def test_a_finished_run_cannot_go_on_and_says_what_to_do(
    start: Start, tiny_path: Path, options: dict[str, Any], onward: str
) -> None:
    run = start(steps=2, keep_checkpoints=False, **options)
    record = (run.path / "run.json").read_bytes()
    with pytest.raises(FeatherbackError) as refused:
        start(steps=3, resume=True, **options)
    assert str(refused.value) == (
        f"{run.path} ended after step 2, and its optimiser states were removed, so it cannot be resumed. To train its "
        f"result further, start a new run: featherback {onward.format(model=tiny_path, run=run.path)} --data DATA "
        f"--out {run.path}-2. With --keep-checkpoints, a run can be resumed after its end."
    )
    assert (run.path / "run.json").read_bytes() == record
    resume_run({"model": str(tiny_path), "out": str(run.path)}).release()  # nobody has it


def test_the_command_that_is_named_works(tmp_path: Path) -> None:
    model, data = write_tiny_chat(tmp_path / "m.gguf"), write_messages(tmp_path / "d.jsonl")
    run = fb.train(model, data, tmp_path / "run", steps=2, rank=2, progress=False)
    with pytest.raises(FeatherbackError) as refused:
        fb.train(model, data, tmp_path / "run", resume=True, steps=3, progress=False)
    words = shlex.split(str(refused.value).partition("new run: ")[2].partition(". With")[0])
    assert words[:2] == ["featherback", "train"]
    assert words[3::2] == ["--from", "--data", "--out"]
    again = fb.train(words[2], data, words[8], start=words[4], steps=1, progress=False)
    assert again.metrics[0]["loss"] < run.metrics[0]["loss"]


def test_resuming_a_finished_run_finds_nothing_to_do(start: Start, tiny_path: Path) -> None:
    """Repeating the same command changes nothing."""
    run = start(steps=2, keep_checkpoints=False)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    again = resume_run({"model": str(tiny_path), "out": str(run.path)})
    assert train_run(again) == "finished"
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_what_needs_a_finished_run_needs_no_checkpoint(tmp_path: Path) -> None:
    """The report's answers and loading the adapter still work."""
    model, data = fb.load(write_tiny_chat(tmp_path / "m.gguf")), write_messages(tmp_path / "d.jsonl")
    run = fb.train(model, data, tmp_path / "run", steps=3, rank=2, progress=False)
    assert checkpoint.latest(run.path) is None
    assert command(["report", str(run.path), "--samples", "2"]) == 0
    assert len(RunDirectory.open(run.path).record.samples) == 2
    assert model.generate("1 plus 1?", adapter=run.path, max_tokens=2) is not None
