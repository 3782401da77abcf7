"""All callbacks receive all events, and an exception in a callback ends the run with a clear error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import featherback as fb
from featherback.core.decode import encode
from featherback.runs import checkpoint
from featherback.runs.events import Begin, End, Evaluation, Event, Failed, Saved, Step
from featherback.runs.record import Failure, HeldOutLoss
from featherback.runs.run_directory import RunDirectory
from tests.runs.conftest import Start, sequences

OPTIONS: dict[str, Any] = {"steps": 6, "save_every": 2, "seq_len": 16, "rank": 4, "compute": "fp32"}


class Everything(fb.Callback):
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def _train(model: Path, out: Path, *callbacks: Any, **options: Any) -> Any:
    held_out = sequences(3, seed=1)
    return fb.train(
        model, sequences(), out, eval_data=held_out, progress=False, callbacks=callbacks, **OPTIONS, **options
    )


def test_events_are_what_the_run_directory_holds(tiny_path: Path, tmp_path: Path) -> None:
    heard, too = Everything(), Everything()
    run = _train(tiny_path, tmp_path / "run", heard, too, eval_every=3, memory="16GB", keep_checkpoints=True)
    assert heard.events == too.events
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [event.values() for event in heard.of(Step)] == lines
    record = RunDirectory.open(run.path).record
    told = [HeldOutLoss(event.step, event.eval_loss, event.mean) for event in heard.of(Evaluation)]
    assert told == record.evaluations
    assert [event.step for event in heard.of(Evaluation) if event.best][-1] == record.summary.best_step
    assert [event.step for event in heard.of(Saved)] == [2, 4, 6]
    assert Path(heard.of(Saved)[-1].path).is_file()
    [first], [last] = heard.of(Begin), heard.of(End)
    assert heard.events[0] is first
    assert heard.events[-1] is last
    assert (first.run, first.steps, first.step, first.memory_mb) == (str(run.path), 6, 0, 16000)
    assert first.configuration == encode(record.configuration)
    assert (last.status, last.summary) == ("finished", run.summary)
    json.dumps([event.values() for event in heard.events], allow_nan=False)


class Broken(fb.Callback):
    def step(self, event: Step) -> None:
        if event.step == 3:
            raise ValueError("planted")


def test_a_callback_that_raises_ends_the_run_in_a_sentence_and_what_was_saved_stays(
    tiny_path: Path, tmp_path: Path
) -> None:
    heard = Everything()
    said = (
        "The callback Broken failed in step() at step 3: ValueError: planted. The last checkpoint is kept. "
        "Correct or remove the callback, and resume the run."
    )
    with pytest.raises(fb.FeatherbackError, match=re.escape(said)):
        _train(tiny_path, tmp_path / "run", Broken(), heard)
    assert heard.of(Failed) == [Failed(3, said)]
    assert not heard.of(End)
    record = RunDirectory.open(tmp_path / "run").record
    assert record.status == "failed"
    assert record.failure == Failure(3, said)
    assert checkpoint.latest_step(tmp_path / "run") == 2
    resumed = _train(tiny_path, tmp_path / "run", heard, resume=True)
    whole = _train(tiny_path, tmp_path / "whole")
    assert (resumed.path / "adapter_model.safetensors").read_bytes() == (
        whole.path / "adapter_model.safetensors"
    ).read_bytes()


def test_one_that_fails_while_told_of_a_failure_does_not_hide_it(start: Start, tmp_path: Path) -> None:
    class Worse(fb.Callback):
        def step(self, event: Step) -> None:
            raise RuntimeError("first")

        def failed(self, event: Failed) -> None:
            raise RuntimeError("second")

    with pytest.raises(RuntimeError, match="first"):
        start(reporter=Worse(), steps=2)


def test_what_is_no_callback_is_refused_before_anything_is_done(tiny_path: Path, tmp_path: Path) -> None:
    with pytest.raises(fb.FeatherbackError, match=r"callbacks contains .*print.*; it must contain instances of"):
        _train(tiny_path, tmp_path / "run", print)
    assert not (tmp_path / "run").exists()
