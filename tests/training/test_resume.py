"""What `resume` makes of a run.json that an older version, or a hand, has written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.training.conftest import Start

from featherback.errors import FeatherbackError
from featherback.training.run_directory import RunDirectory
from featherback.training.trainer import train_run

Change = Callable[[dict[str, Any]], object]

FOREIGN: dict[str, Change] = {
    "none": lambda record: record.pop("plan"),
    "no dictionary": lambda record: record.update(plan=[]),
    "unknown fields": lambda record: record["plan"].update(drop_pages=True, read_ahead=True),
    "a missing field": lambda record: record["plan"].pop("weights"),
    "weights": lambda record: record["plan"].update(weights="dropped"),
    "checkpoints": lambda record: record["plan"].update(checkpoints="x"),
    "states": lambda record: record["plan"].update(states=["ram"]),
    "compute": lambda record: record["plan"].update(compute="fp64"),
    "a size": lambda record: record["plan"].update(mlp_tile="512"),
    "no size": lambda record: record["plan"].update(tokens=0),
    "a switch": lambda record: record["plan"].update(keep_h=1),
    "a prediction": lambda record: record["plan"].update(predicted_rss_mb="much"),
}


def rewrite(run: Path, change: Change) -> bytes:
    """Change run.json; what it holds then."""
    record = json.loads((run / "run.json").read_bytes())
    change(record)
    (run / "run.json").write_text(json.dumps(record))
    return (run / "run.json").read_bytes()


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN)
def test_a_plan_of_another_version_is_made_anew(
    start: Start, change: Change, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(steps=1)
    rewrite(run.path, change)
    with pytest.raises(FeatherbackError, match=r"run\.json holds no plan of this version .* --resume makes"):
        RunDirectory.open(run.path).plan  # noqa: B018 - it is the reading that fails
    resumed = start(steps=2, resume=True)
    assert capsys.readouterr().err.count("the plan is made anew") == 1
    assert RunDirectory.open(run.path).plan == resumed.plan
    assert len(list(resumed.metrics())) == 2
    start(steps=3, resume=True)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("keep", "says"),
    [
        ({"x": 1}, "names 'x'; what this model can keep is q, k, v, o, lse, m, gate, up"),
        ({"m": 1, "gate": 3}, "has gate in 3 layers; the model has 2"),
        ({"o": 1, "lse": 1}, "must have q, k, v, o, lse in the same number of layers"),
    ],
    ids=["a name", "layers", "a part of a bundle"],
)
def test_a_plan_that_keeps_what_the_model_has_not_is_refused(
    start: Start, keep: dict[str, int], says: str
) -> None:
    run = start(steps=1)
    record = rewrite(run.path, lambda record: record["plan"].update(keep=keep))
    refusal = rf"{re.escape(str(run.path))}/run\.json is damaged: plan\.keep {re.escape(says)}\. Correct it, or delete"
    with pytest.raises(FeatherbackError, match=refusal):
        start(steps=2, resume=True)
    with pytest.raises(FeatherbackError, match=refusal):  # the worker, had it been started by hand
        train_run(RunDirectory.open(run.path))
    assert json.loads(record)["plan"] == RunDirectory.open(run.path).record["plan"]
    start(steps=2, resume=True, memory=10**9)  # another budget, another plan


def test_a_refused_resume_leaves_the_record_as_it_was(start: Start) -> None:
    run = start(steps=1)
    record = rewrite(run.path, FOREIGN["unknown fields"])
    for refused, says in (
        ({"memory": 10**6}, "does not fit"),
        ({"rank": 8}, "with other options"),
        ({"eval_seed": 1}, "--eval-data"),
    ):
        with pytest.raises(FeatherbackError, match=says):
            start(**{"steps": 2, "resume": True, **refused})
        assert (run.path / "run.json").read_bytes() == record
    with (
        RunDirectory.open(run.path).locked(),
        pytest.raises(FeatherbackError, match="by another process"),
    ):
        start(steps=2, resume=True)
    assert (run.path / "run.json").read_bytes() == record


def test_targets_are_recorded_as_the_projections_that_the_model_has(start: Start) -> None:
    run = start(steps=1)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert RunDirectory.open(run.path).record["configuration"]["targets"] == names
    start(steps=2, resume=True, targets="down,q,k,v,o,gate,up")  # other words for all
    with pytest.raises(FeatherbackError, match=re.escape("--targets was q,k,v,o,gate,up,down, not q,v")):
        start(steps=3, resume=True, targets="q,v")
