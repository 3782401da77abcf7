"""The stages of a launch fit together, and their values survive the change of programs."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from featherback.runs.config import TrainConfig
from featherback.runs.stages import (
    COMMANDS,
    NEW,
    RESUMED,
    EvaluationOptions,
    NewRunOptions,
    PlannedRun,
    PreparedEvaluation,
    PreparedRun,
    ResumeOptions,
    Stage,
    StageTools,
)
from tests.runs import runs


def _hints(stage: Stage) -> dict[str, Any]:
    module, _, name = stage.function.rpartition(".")
    return get_type_hints(getattr(import_module(module), name))


@pytest.mark.parametrize("stages", COMMANDS, ids=["new", "resumed", "evaluation"])
def test_each_stage_takes_what_the_one_before_makes(stages: tuple[Stage, ...]) -> None:
    made: Any = None
    for stage in stages:
        hints = _hints(stage)
        made_now = hints.pop("return")
        assert hints.pop("means") is StageTools, stage.name
        (taken,) = hints.values()
        assert issubclass(stage.takes, taken), stage.name
        assert made is None or stage.takes in (made, *getattr(made, "__args__", ())), stage.name
        made = made_now
    assert len({stage.name for stage in (*NEW, *RESUMED)}) == len(NEW) + len(RESUMED) - 6


def test_the_options_survive_the_change_of_programs() -> None:
    config = TrainConfig(model="m", data=("d",), out="o", targets=("q", "v"), memory="least")
    for value in (NewRunOptions(config), NewRunOptions(config, {"tokens": 5}), PlannedRun(config, {"tokens": 5})):
        again = type(value).from_json(json.loads(json.dumps(value.to_json())))
        assert again == value
        assert type(again) is type(value)
    asked = EvaluationOptions("m", {"paths": ["-"]}, None, "none", None, False, "bf16", 2, "least", "dpo")
    for each in (asked, PreparedEvaluation(asked, "folder", {"examples": 2}, {"tokens": 5})):
        assert type(each).from_json(json.loads(json.dumps(each.to_json()))) == each
    named = ResumeOptions({"out": "o", "data": ["d"], "steps": 3})
    assert ResumeOptions.from_json(json.loads(json.dumps(named.to_json()))) == named


def test_a_run_survives_it_with_its_lock(tiny_path: Path, tmp_path: Path) -> None:
    run = runs.prepared(tiny_path, tmp_path / "run", steps=1)
    value = PreparedRun(run, is_new=True, outgrown=True)
    again = PreparedRun.from_json(json.loads(json.dumps(value.to_json())))
    assert (again.run.path, again.run.record) == (run.path, json.loads(json.dumps(run.record)))
    assert (again.is_new, again.outgrown) == (True, True)
    again.run.release()
