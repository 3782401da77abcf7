"""Pausing on battery and lowering the priority do not change the result of a run."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from featherback.core.decode import decode, encode
from featherback.engine.host.sensors import Sensors
from featherback.errors import FeatherbackError
from featherback.runs.callback import Callback
from featherback.runs.config import TrainConfig
from featherback.runs.events import Paused, Resumed, Step
from featherback.runs.preparation import prepare_run
from featherback.runs.run_directory import RunDirectory
from featherback.runs.trainer import train_run
from featherback.view.reporter import JSONReporter, TextReporter
from tests.engine.host.test_sensors import CELL, device
from tests.runs import runs
from tests.runs.conftest import sequences

OPTIONS: dict[str, Any] = {"rank": 4, "steps": 6, "save_every": 100, "learning_rate": 1e-2}


class Plugged(Callback):
    """Switches to battery after step 3 and, once the run has waited a few times, calls the given function."""

    def __init__(self, cell: Path, then: Any) -> None:
        self.cell, self.then, self.said = cell, then, list[str]()

    def step(self, event: Step) -> None:
        self.said.append(f"step {event.step}")
        if event.step == 3:
            self.cell.write_text("Discharging\n")

    def paused(self, event: Paused) -> None:
        self.said.append(event.reason)
        if self.said.count(event.reason) == 3:
            self.then()

    def resumed(self, event: Resumed) -> None:
        self.said.append("resumed")


def _plugged(tmp_path: Path, then: Any) -> tuple[Plugged, Sensors]:
    folder = device(tmp_path / "sys", "power_supply", "BAT0", CELL)
    return Plugged(folder / "status", then), Sensors(("battery",), tmp_path / "sys", every=0)


def _adapter(run: RunDirectory) -> bytes:
    return (run.path / "adapter_model.safetensors").read_bytes()


def _whole(tiny_path: Path, tmp_path: Path) -> RunDirectory:
    run = runs.prepared(tiny_path, tmp_path / "whole", **OPTIONS)
    train_run(run)
    return run


def test_a_run_waits_and_goes_on_as_if_it_had_not(tiny_path: Path, tmp_path: Path) -> None:
    reporter, sensors = _plugged(tmp_path, lambda: reporter.cell.write_text("Charging\n"))
    run = runs.prepared(tiny_path, tmp_path / "run", **OPTIONS)
    assert train_run(run, reporter, sensors=sensors) == "finished"
    waited = ["on battery"] * 3 + ["resumed"]
    assert reporter.said == ["step 1", "step 2", "step 3", *waited, "step 4", "step 5", "step 6"]
    whole = _whole(tiny_path, tmp_path)
    assert _adapter(run) == _adapter(whole)
    assert [line["loss"] for line in run.metrics()] == [line["loss"] for line in whole.metrics()]
    assert (run.path / "checkpoint-000003.fbc").exists()  # the battery might not have lasted


def test_a_signal_is_obeyed_while_it_waits(tiny_path: Path, tmp_path: Path) -> None:
    reporter, sensors = _plugged(tmp_path, lambda: os.kill(os.getpid(), signal.SIGTERM))
    run = runs.prepared(tiny_path, tmp_path / "run", **OPTIONS)
    assert train_run(run, reporter, sensors=sensors) == "interrupted"
    assert RunDirectory.open(run.path).record.status == "interrupted"
    assert reporter.said[3:] == ["on battery"] * 3 + ["resumed"]
    resumed = runs.resumed(tiny_path, run.path)
    train_run(resumed)
    assert _adapter(resumed) == _adapter(_whole(tiny_path, tmp_path))


def test_an_evaluation_waits_too(tiny_path: Path, tmp_path: Path) -> None:
    reporter, sensors = _plugged(tmp_path, lambda: reporter.cell.write_text("Charging\n"))
    reporter.cell.write_text("Discharging\n")
    config = TrainConfig(
        model=str(tiny_path), data="tokens", eval_data="tokens", out=str(tmp_path / "run"), seq_len=16, steps=1
    )
    run = prepare_run(config, sequences(), sequences(3, seed=1))
    assert train_run(run, reporter, sensors=sensors) == "finished"
    assert reporter.said == ["on battery"] * 3 + ["resumed", "step 1"]


def test_what_is_said(tmp_path: Path) -> None:
    plain, lines = io.StringIO(), io.StringIO()
    for reporter in (TextReporter(plain), JSONReporter(lines)):
        for _ in range(2):
            reporter.tell(Paused("on battery"))
            reporter.tell(Paused("on battery"))
            reporter.tell(Resumed())
    assert plain.getvalue() == "paused: on battery\nresumed\n" * 2
    said = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert said == [{"event": "paused", "reason": "on battery"}, {"event": "resumed"}] * 2


def test_a_sensor_that_is_not_there_is_refused_before_anything_is_done(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("featherback.engine.host.sensors.KINDS", {"battery": _missing, "heat": _missing})
    with pytest.raises(FeatherbackError, match="no such sensor"):
        runs.prepared(tiny_path, tmp_path / "run", steps=1, pause_on="battery")
    assert not (tmp_path / "run").exists()
    run = runs.prepared(tiny_path, tmp_path / "run", steps=1)
    run.release()
    with pytest.raises(FeatherbackError, match="no such sensor"):
        runs.resumed(tiny_path, run.path, pause_on="heat")
    assert RunDirectory.open(run.path).record.status == "prepared"


def _missing(_: Path) -> Any:
    raise FeatherbackError("no such sensor")


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ("battery,heat", ("battery", "heat")),
        ("heat, battery", ("battery", "heat")),
        (("heat",), ("heat",)),
        ("none", ()),
        (None, None),
    ],
)
def test_pause_on(given: Any, means: Any) -> None:
    config = TrainConfig(model="m", out="o", pause_on=given)
    assert config.pause_on == means
    assert decode(TrainConfig, json.loads(json.dumps(encode(config))), "run.json") == config


@pytest.mark.parametrize("given", ["cold", "battery;heat", "", 3, ["battery", 1]])
def test_pause_on_what_there_is_not(given: Any) -> None:
    with pytest.raises(FeatherbackError, match=r"--pause-on is .*; write battery, heat, battery,heat or none\."):
        TrainConfig(model="m", out="o", pause_on=given)


@pytest.mark.parametrize("wrong", [20, -1, 1.5])
def test_nice_out_of_range(wrong: Any) -> None:
    with pytest.raises(FeatherbackError, match=r"--nice is .*; it must be (at least 0 and at most 19|a whole)"):
        TrainConfig(model="m", out="o", nice=wrong)


NICE = """
import os, sys, threading
from featherback.core.system import machine
waiting = threading.Event()
threading.Thread(target=waiting.wait).start()
def all():
    return sorted({os.getpriority(os.PRIO_PROCESS, int(name)) for name in os.listdir("/proc/self/task")})
for niceness in (5, 3, 7):
    machine.lower_priority(niceness)
    print(*all())
waiting.set()
print(os.popen("nice").read().strip())
"""


@pytest.mark.usefixtures("all_cores")
@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_every_thread_steps_back_and_none_comes_forward() -> None:
    """Every thread of the process, and what it starts; a priority that is lower already stays."""
    done = subprocess.run([sys.executable, "-c", NICE], capture_output=True, text=True, check=True)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert [int(line) for line in done.stdout.split("\n")[:4]] == [max(before, n) for n in (5, 5, 7, 7)]


def test_nice_holds_for_the_training_process_and_is_recorded(tiny_path: Path, tmp_path: Path) -> None:
    """Prepared by another process, which need not have stepped back, and trained by one of its own."""
    run = runs.prepared(tiny_path, tmp_path / "run", steps=100_000)
    run.update(configuration=replace(run.config, nice=11))
    run.release()
    process = runs.worker(run.path)
    runs.wait_for(lambda: run.metrics_path.exists() and run.metrics_path.stat().st_size, process)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == max(before, 11)
    process.terminate()
    process.communicate(timeout=runs.PATIENCE)
    assert RunDirectory.open(run.path).record.configuration.nice == 11
