"""Loggers are imported only on request, receive all events, and cause a clear error if they are missing.

The programs are stood in for by modules that keep what they are told, with the names of theirs that are called.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from featherback.cli.app import run as command
from featherback.core.decode import decode, encode
from featherback.errors import FeatherbackError
from featherback.runs import loggers
from featherback.runs.config import TrainConfig
from featherback.runs.loggers import LOGGERS
from featherback.runs.run_directory import RunDirectory
from tests.runs.conftest import Start


class Heard:
    """What a program received: (name, step, value), and how it ended."""

    def __init__(self) -> None:
        self.values: list[tuple[str, int, float]] = []
        self.begun: list[dict[str, Any]] = []
        self.ended: list[Any] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.values += [(name, step, value) for name, value in values.items()]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """The three programs, all writing to one place."""
    kept = Heard()

    class Writer:
        def __init__(self, place: str) -> None:
            kept.begun.append({"dir": place})

        def add_scalar(self, name: str, value: float, step: int) -> None:
            kept.values.append((name, step, value))

        def close(self) -> None:
            kept.ended.append("closed")

    def begin(**named: Any) -> Any:
        kept.begun.append(named)
        run = types.SimpleNamespace(log=kept.log, summary={})
        run.finish = lambda exit_code=0: kept.ended.append((exit_code, run.summary))
        return run

    modules: dict[str, Any] = {name: types.ModuleType(name) for name in (*LOGGERS.names, "tensorboard.summary")}
    modules["tensorboard.summary"].Writer = Writer
    modules["wandb"].init, modules["wandb"].Settings = begin, dict

    def begin_aloud(**named: Any) -> Any:
        print("* a word about trackio")
        return begin(**named)

    def finish_aloud() -> None:
        print("* another word")
        kept.ended.append("finished")

    modules["trackio"].init, modules["trackio"].log = begin_aloud, kept.log
    modules["trackio"].finish = finish_aloud
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    for name in LOGGERS.names:  # theirs and ours are imported anew
        monkeypatch.delitem(sys.modules, f"featherback.runs.loggers.{name}", raising=False)
        monkeypatch.delattr(loggers, name, raising=False)
    return kept


@pytest.mark.parametrize("name", LOGGERS.names)
def test_a_program_is_told_what_the_run_directory_holds(
    start: Start, heard: Heard, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(steps=4, eval_seed=1, eval_every=2, log_to=name)
    assert not capsys.readouterr().out  # where --json's lines go
    lines = list(run.metrics())
    for field in ("loss", "lr", "grad_norm", "rss_mb", "footprint_mb", "seconds", "tokens"):
        told = [(step, value) for known, step, value in heard.values if known == f"train/{field}"]
        assert told == [(line["step"], line[field]) for line in lines], field
    told = [{"step": step, "loss": value} for known, step, value in heard.values if known == "eval/loss"]
    evaluations = RunDirectory.open(run.path).record.evaluations
    assert told == [{"step": each.step, "loss": each.loss} for each in evaluations]
    assert len(heard.begun) == len(heard.ended) == 1
    if name == "wandb":
        assert heard.begun[0]["mode"] == "offline"
        assert heard.ended == [(0, encode(RunDirectory.open(run.path).record.summary))]
    if name != "tensorboard":
        assert heard.begun[0]["config"]["rank"] == 4


@pytest.mark.parametrize("name", LOGGERS.names)
def test_it_is_told_of_a_failure(start: Start, heard: Heard, name: str) -> None:
    with pytest.raises(FeatherbackError, match="not finite"):
        start(steps=50, learning_rate=1e30, max_grad_norm=0.0, optimizer="sgd", log_to=[name])
    assert len(heard.ended) == 1


def test_a_program_that_fails_ends_the_run_in_a_sentence(start: Start, heard: Heard, tmp_path: Path) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("no more room")

    sys.modules["trackio"].log = broken  # type: ignore[attr-defined]
    with pytest.raises(FeatherbackError, match=r"The callback Trackio failed in step\(\) at step 1: ValueError: no"):
        start(steps=2, log_to="trackio")
    assert RunDirectory.open(tmp_path / "run").record.status == "failed"


@pytest.mark.parametrize("name", LOGGERS.names)
def test_a_program_that_is_missing_is_a_sentence_before_anything_is_done(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setattr("featherback.runs.loggers.find_spec", lambda _: None)
    with pytest.raises(FeatherbackError, match=rf"not installed: pip install 'featherback\[{name}\]'"):
        start(steps=2, log_to=name)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "means"),
    [("wandb,trackio", ("trackio", "wandb")), (["wandb", "wandb"], ("wandb",)), ("none", ()), (None, None)],
)
def test_log_to(given: Any, means: Any) -> None:
    config = TrainConfig(model="m", out="o", log_to=given)
    assert config.log_to == means
    assert decode(TrainConfig, json.loads(json.dumps(encode(config))), "run.json") == config


def test_log_to_what_there_is_not() -> None:
    with pytest.raises(FeatherbackError, match=r"--log-to is 'mlflow'; write none, or a list of tensorboard, t"):
        TrainConfig(model="m", out="o", log_to="mlflow")


LOADED = """
import sys
import featherback.worker, featherback.runs.trainer
from featherback.view.reporter import JSONReporter
from featherback.view.show import reporter
reporter()
print(*sorted(sys.modules))
"""


def test_a_training_process_loads_none_of_what_was_not_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    foreign = {*LOGGERS.names, "matplotlib", "jinja2", "tokenizers", "html"}
    ours = {"live", "frame", "braille", "report", "report.page", *(f"loggers.{name}" for name in LOGGERS.names)}
    assert "featherback.runs.loggers" in loaded
    assert not loaded & (foreign | {f"featherback.runs.{name}" for name in ours})
    assert not any(name.startswith(("featherback.data.containers", "featherback.data.decoders")) for name in loaded)


def test_what_a_run_was_logged_to_is_named_again_or_left_out(
    start: Start, heard: Heard, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start("run", steps=1)
    plan = RunDirectory.open(run.path).record.plan
    record = json.loads((run.path / "run.json").read_text())
    record["configuration"]["log_to"] = list(LOGGERS.names)
    (run.path / "run.json").write_text(json.dumps(record))
    resumed = start("run", steps=2, resume=True)
    assert heard.begun == heard.values == []
    every = ",".join(LOGGERS.names)
    said = f"note: the run is no longer logged to {every}; to continue logging, add --log-to {every}"
    assert said in capsys.readouterr().err
    record = RunDirectory.open(resumed.path).record
    assert record.configuration.log_to is None
    assert record.plan == plan  # which alone decides about bits
    start("run", steps=3, resume=True, log_to="trackio")
    assert len(heard.begun) == 1
    assert "no longer" not in capsys.readouterr().err


def test_none_is_an_answer(start: Start, heard: Heard, capsys: pytest.CaptureFixture[str]) -> None:
    run = start("run", steps=1, log_to="trackio")
    start("run", steps=2, resume=True, log_to="none")
    assert len(heard.begun) == 1
    assert "no longer" not in capsys.readouterr().err
    assert command(["report", str(run.path)]) == 0
    assert len(heard.begun) == 1
