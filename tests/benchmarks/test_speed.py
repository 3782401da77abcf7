"""`python -m benchmarks speed`: the models that it writes, its steps and the names of its rows. No time is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import speed, synthetic
from benchmarks.speed import OURS, Setting
from featherback.methods.memory.plan import Plan

PLAN = Plan(tokens=256)
NAMES = ["smollm2-135m", "qwen2.5-0.5b"]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that are made, in place of making them."""
    names: list[str] = []

    def write(path: Path, name: str) -> None:
        path.touch()
        names.append(name)

    monkeypatch.setattr(synthetic, "write_synthetic", write)
    monkeypatch.setattr(speed, "require_torch", lambda: None)
    monkeypatch.setattr(speed, "_products", lambda *_: [])
    return names


@pytest.mark.parametrize("quick", [True, False])
def test_only_the_models_used_are_made(
    quick: bool, written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def rounds(setting: Setting, path: Path, *_: object) -> list[dict[str, float]]:
        assert path.exists()
        asked.append(setting)
        return [{OURS: 1.0}]

    monkeypatch.setattr(speed, "_rounds", rounds)
    found = speed.run(NAMES, tmp_path, 3, quick, False, lambda _: None)
    assert written == (NAMES[:1] if quick else NAMES)
    assert asked == (speed.settings(NAMES)[:1] if quick else speed.settings(NAMES))
    assert [(row["model"], row["tokens"]) for row in found["steps"]] == [(s.model, s.tokens) for s in asked]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("keep", [True, False])
def test_every_run_takes_the_steps_asked_for_and_the_rows_say_which_plan_it_was(
    keep: bool, written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    def step(*_: object, **options: Any) -> dict[str, Any]:
        steps.append(options["steps"])
        return {"seconds": [1.0] * options["steps"]}

    def plan(*_: object, budget: int | None = None) -> Plan:
        return replace(PLAN, keep={"gate": 1} if keep and budget is not None else {})

    monkeypatch.setattr(speed, "run_step", step)
    monkeypatch.setattr(speed, "peft_step", step)
    monkeypatch.setattr(speed, "job_of", lambda *_: None)
    monkeypatch.setattr(speed, "plan_of", plan)
    monkeypatch.setattr(speed, "_onednn_sum", lambda *_: 1.0)
    found = speed.run(NAMES, tmp_path, 5, True, False, lambda _: None)
    assert set(steps) == {5}
    ((row,),) = (part["rounds"] for part in found["steps"])
    assert f"blocks {'kept' if keep else 'recomputed'} (--memory 4GB)" in row
    assert "| " + OURS in found["markdown"]
