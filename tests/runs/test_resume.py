"""Resuming: what it needs, what it rejects, and records that an older version or a person has written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featherback.cli.app import run as command_line
from featherback.errors import FeatherbackError
from featherback.runs.config import TrainConfig
from featherback.runs.preparation import prepare_run, resume_run
from featherback.runs.run_directory import RunDirectory
from featherback.runs.run_file import read
from featherback.runs.trainer import train_run
from tests.runs.conftest import Start, sequences
from tests.support.tiny_chat import write_messages, write_tiny_chat

Change = Callable[[dict[str, Any]], object]


def rewrite(run: Path, change: Change) -> bytes:
    """Change run.json and return its new content."""
    record = json.loads((run / "run.json").read_bytes())
    change(record)
    (run / "run.json").write_text(json.dumps(record))
    return (run / "run.json").read_bytes()


def test_a_run_without_a_plan_gets_a_new_one(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    run = start(steps=1)
    rewrite(run.path, lambda record: record.update(plan=None))
    with pytest.raises(FeatherbackError, match=r"run\.json has no plan; .* --resume to make"):
        RunDirectory.open(run.path).plan  # noqa: B018 - it is the reading that fails
    resumed = start(steps=2, resume=True)
    assert capsys.readouterr().err.count("making a new plan") == 1
    assert RunDirectory.open(run.path).plan == resumed.plan
    assert len(list(resumed.metrics())) == 2
    start(steps=3, resume=True)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("keep", "says"),
    [
        ({"x": 1}, "plan.keep has 'x'; this model can keep q, k, v, o, lse, m, gate, up"),
        ({"m": 1, "gate": 3}, "plan.keep has gate in 3 layers; the model has 2"),
        ({"o": 1, "lse": 1}, "plan.keep must have q, k, v, o, lse in the same number of layers"),
    ],
    ids=["a name", "layers", "a part of a bundle"],
)
def test_a_plan_that_keeps_what_the_model_has_not_is_refused(start: Start, keep: dict[str, int], says: str) -> None:
    run = start(steps=1)
    record = rewrite(run.path, lambda record: record["plan"].update(keep=keep))
    refusal = rf"{re.escape(str(run.path))}/run\.json is damaged: {re.escape(says)}\. Correct it, or set"
    with pytest.raises(FeatherbackError, match=refusal):
        start(steps=2, resume=True)
    with pytest.raises(FeatherbackError, match=refusal):  # the worker, had it been started by hand
        train_run(RunDirectory.open(run.path))
    assert json.loads((run.path / "run.json").read_bytes())["plan"] == json.loads(record)["plan"]
    start(steps=2, resume=True, memory=10**9)  # another budget, another plan


def test_a_precision_cannot_be_changed(start: Start) -> None:
    start(steps=1, keep_precision="8bit")
    with pytest.raises(FeatherbackError, match="with other options"):
        start(steps=2, resume=True, keep_precision="exact")
    start(steps=2, resume=True, keep_precision="8bit")


def test_a_refused_resume_leaves_the_record_as_it_was(start: Start) -> None:
    run = start(steps=1)
    record = rewrite(run.path, lambda record: record.update(plan=None))
    for refused, says in (
        ({"memory": 10**6}, "does not fit"),
        ({"rank": 8}, "with other options"),
        ({"eval_seed": 1}, "--eval-data"),
    ):
        with pytest.raises(FeatherbackError, match=says):
            start(**{"steps": 2, "resume": True, **refused})
        assert (run.path / "run.json").read_bytes() == record
    with RunDirectory.open(run.path).locked(), pytest.raises(FeatherbackError, match="by another process"):
        start(steps=2, resume=True)
    assert (run.path / "run.json").read_bytes() == record


def test_targets_are_recorded_as_the_projections_that_the_model_has(start: Start) -> None:
    run = start(steps=1)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert RunDirectory.open(run.path).record.configuration.targets == tuple(names)
    start(steps=2, resume=True, targets="down,q,k,v,o,gate,up")  # other words for all
    with pytest.raises(FeatherbackError, match=re.escape("--targets was q,k,v,o,gate,up,down, not q,v")):
        start(steps=3, resume=True, targets="q,v")


def test_nothing_but_the_directory_and_the_model_is_needed(start: Start, tiny_path: Path) -> None:
    whole = start("whole", steps=4, eval_seed=9, eval_every=2)
    run = start("parts", steps=4, eval_seed=9, eval_every=2)
    (run.path / "checkpoint-000004.fbc").unlink()
    (run.path / "adapter_model.safetensors").unlink()
    run.update(status="interrupted")  # before its first checkpoint: it begins anew, from the directory alone
    again = resume_run({"model": str(tiny_path), "out": str(run.path)})
    train_run(again)
    assert again.config == run.config
    adapters = [(path / "adapter_model.safetensors").read_bytes() for path in (run.path, whole.path)]
    assert adapters[0] == adapters[1]
    evaluated = [RunDirectory.open(path).record.evaluations for path in (run.path, whole.path)]
    assert evaluated[0] == evaluated[1] != []


def test_held_out_data_go_on_being_measured_and_the_best_is_exported(start: Start, tiny_path: Path) -> None:
    run = start(steps=2, eval_seed=9, eval_every=1)
    before = (run.path / "adapter_model.safetensors").read_bytes()
    resumed = resume_run({"model": str(tiny_path), "out": str(run.path), "steps": 8})
    train_run(resumed)
    record = RunDirectory.open(run.path).record
    assert [each.step for each in record.evaluations] == list(range(9))
    assert record.summary.best_step == 8
    assert (run.path / "adapter_model.safetensors").read_bytes() != before


def test_patience_can_be_named_when_resuming(start: Start, tiny_path: Path) -> None:
    run = start(steps=3, eval_seed=9, eval_every=1, learning_rate=0.3, schedule="constant")
    train_run(resume_run({"model": str(tiny_path), "out": str(run.path), "steps": 60, "patience": 2}))
    record = RunDirectory.open(run.path).record
    assert record.status == "stopped early"
    assert record.configuration.patience == 2


def test_other_data_are_refused(start: Start, tiny_path: Path) -> None:
    run = start(steps=1)
    named = {"model": str(tiny_path), "out": str(run.path), "steps": 2}
    record = (run.path / "run.json").read_bytes()
    for given in ({"data": sequences(seed=5)}, {"data": sequences(11)}):
        with pytest.raises(FeatherbackError, match=r"with other data, and continues with its own\. Remove --data"):
            resume_run(named, **given)
    with pytest.raises(FeatherbackError, match=r"with --data other\.jsonl: the run was started with other data"):
        resume_run({**named, "data": "other.jsonl"})
    assert (run.path / "run.json").read_bytes() == record


def test_the_file_of_the_data_may_move_or_go_but_not_be_another(tmp_path: Path) -> None:
    model, data = write_tiny_chat(tmp_path / "m.gguf"), write_messages(tmp_path / "d.jsonl")
    other = write_messages(tmp_path / "other.jsonl", 5)
    options: dict[str, Any] = {"seq_len": 64, "rank": 2, "steps": 1, "keep_checkpoints": True}
    run = prepare_run(TrainConfig(model=str(model), data=(str(data),), out=str(tmp_path / "run"), **options))
    train_run(run)
    named = {"model": str(model), "out": str(run.path)}
    with pytest.raises(FeatherbackError, match=r"other\.jsonl: the run was started with other data"):
        resume_run({**named, "data": str(other)})
    heard: list[str] = []
    moved = data.rename(tmp_path / "moved.jsonl")
    for path in (moved, data):  # moved to here; no longer there
        resume_run({**named, "data": str(path)}, note=heard.append).release()
    write_messages(data, 3)
    resume_run({**named, "data": str(data)}, note=heard.append).release()
    assert heard == [
        f"note: {data} is missing; the run continues with its stored tokens",
        f"note: {data} has changed; the run continues with its stored tokens",
    ]
    assert RunDirectory.open(run.path).record.configuration.data == (str(data),)


def test_the_steps_say_how_much_is_read_and_more_steps_are_told(tmp_path: Path) -> None:
    model, data = write_tiny_chat(tmp_path / "m.gguf"), write_messages(tmp_path / "d.jsonl", 200)
    options: dict[str, Any] = {"seq_len": 64, "rank": 2, "steps": 2, "accumulate": 3, "eval_share": 0}
    options |= {"out": str(tmp_path / "run"), "keep_checkpoints": True}
    run = prepare_run(TrainConfig(model=str(model), data=(str(data),), **options))
    report = run.record.data["train"]
    assert 2 * 3 * 64 <= report.tokens < 2 * 3 * 64 + 64
    assert report.read_to == f"{data}, line {report.examples}"
    train_run(run)
    heard: list[str] = []
    named = {"model": str(model), "out": str(run.path)}
    resume_run(named, note=heard.append).release()
    assert heard == []
    resume_run({**named, "steps": 3}, note=heard.append).release()
    assert heard == [
        f"note: the data were read only up to {report.read_to}, enough for the steps of the first command; "
        "further steps repeat the same tokens"
    ]


DAMAGED: dict[str, tuple[str, bytes, str]] = {
    "half a record": ("run.json", b'{"format": 1, "sta', "run.json is not valid JSON"),
    "a deep record": ("run.json", b"[" * 100_000, "run.json is not usable JSON: it is nested too deeply"),
    "a list": ("run.json", b"[]", "run.json is damaged: it is not the record of a run"),
    "data that are a number": ("run.json", b'{"format": 3, "data": {"eval": 5}}', "run.json"),
    "bytes": ("run.json", b"\xff\xfe\x00", "run.json is not valid JSON"),
    "a line of metrics that is a number": ("metrics.jsonl", b"5\n", "metrics.jsonl is damaged"),
    "a line without a step": ("metrics.jsonl", b'{"loss": 1}\n', "metrics.jsonl is damaged"),
    **{
        f"metrics of {number.decode()[:9]} seconds": (
            "metrics.jsonl",
            b'{"step": 1, "loss": 2, "tokens": 3, "seconds": ' + number + b"}\n",
            "metrics.jsonl is damaged",
        )
        for number in (b"1e400", b"NaN", b"1e308", b"9" * 400)
    },
    "metrics that are no text": ("metrics.jsonl", b"\xff\xff\n", "metrics.jsonl is damaged"),
    "tokens": ("tokens/train.tokens", b"FBTOKENS", "train.tokens is not a token file"),
}


@pytest.mark.parametrize(("name", "content", "says"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_named_in_one_sentence(start: Start, name: str, content: bytes, says: str) -> None:
    run = start(steps=1)
    (run.path / name).write_bytes(content)
    with pytest.raises(FeatherbackError) as raised:
        start(steps=2, resume=True)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "maker"),
    [
        (lambda record: record.update(format=1), "an earlier build of Featherback '0.1.0'"),
        (lambda record: record.update(format=4, versions={"featherback": "9.0"}), "Featherback '9.0'"),
        (lambda record: record.update(format="1", versions=[]), "another version of Featherback"),
    ],
)
def test_a_run_in_another_form_is_refused_with_the_version_that_made_it(
    start: Start, capsys: pytest.CaptureFixture[str], change: Change, maker: str
) -> None:
    run = start(steps=1)
    before = rewrite(run.path, change)
    with pytest.raises(FeatherbackError, match=rf"run\.json was made by {re.escape(maker)}, in another form"):
        start(steps=2, resume=True)
    assert command_line(["report", str(run.path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (run.path / "run.json").read_bytes() == before


def test_the_command_line_resumes_a_run_begun_from_python(start: Start, tiny_path: Path) -> None:
    run = start(steps=2)
    command = [sys.executable, "-m", "featherback", "train", str(tiny_path), "--out", str(run.path), "--resume"]
    done = subprocess.run([*command, "--steps", "3"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tokens given" in done.stdout
    assert "continuing after step 2 of 3" in done.stdout
    again = subprocess.run([*command, "--data", "other.jsonl"], capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert again.stderr.startswith(f"error: Cannot resume {run.path} with --data other.jsonl:")
    assert len(again.stderr.strip().splitlines()) == 1


def test_where_a_run_starts_from_is_the_same_from_any_folder(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    start("first", steps=1)
    monkeypatch.chdir(tmp_path)
    run = start("second", steps=1, start="first")
    monkeypatch.chdir(elsewhere)
    start("second", steps=2, resume=True, start="../first")
    assert read(run.path / "run.yaml").values["start"] == str(tmp_path / "first")
    with pytest.raises(FeatherbackError, match=r"--from was .*first, not first"):
        start("second", steps=3, resume=True, start="first")
