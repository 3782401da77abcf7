"""A run that averages keeps the adapter that it measured, and averaging does not change training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from featherback import models
from featherback.data.token_file import TokenFile
from featherback.exports import formats
from featherback.methods import create
from featherback.methods.memory.plan import Plan
from featherback.optim.average import Averaged
from featherback.runs.choose import job_of
from featherback.runs.config import TrainConfig
from featherback.runs.evaluation import evaluate
from featherback.runs.run_directory import RunDirectory
from tests.runs.conftest import Start
from tests.support.tiers import some


@pytest.mark.parametrize("options", some([{}, {"learning_rate": 0.3}, {"dora": True}, {"method": "lcsb"}], 2), ids=str)
def test_what_is_kept_is_what_was_measured(start: Start, options: dict[str, Any]) -> None:
    options = {"steps": 6, "eval_seed": 9, "eval_every": 3, **options}
    run, last = start("better", **options), start("last", keep="last", **options)
    model = models.load(run.config.model)
    plan = Plan.default(model.config, tokens=run.config.sequence, compute="fp32")
    kept = create("mesp", model, formats.load(model, run.path), plan)
    loss = evaluate(kept, TokenFile(run.tokens / "eval.tokens"), run.config.sequence).loss
    assert loss == pytest.approx(_best(run), rel=1e-6)
    assert [line["loss"] for line in run.metrics()] == [line["loss"] for line in last.metrics()]
    (first, mid, end), (first_last, mid_last, end_last) = _measured(run), _measured(last)
    assert first == first_last
    assert mid.mean
    assert mid.loss != pytest.approx(mid_last.loss, rel=1e-5)
    assert end.loss <= end_last.loss
    assert (end.loss < end_last.loss) == end.mean


def _measured(run: RunDirectory) -> list[dict[str, Any]]:
    return list(RunDirectory.open(run.path).record.evaluations)


def _best(run: RunDirectory) -> float:
    return float(RunDirectory.open(run.path).record.summary.best_eval_loss)


@pytest.mark.parametrize(("rate", "mean"), [(1e-3, False), (0.3, True)])
def test_in_the_end_the_better_is_kept(start: Start, rate: float, mean: bool) -> None:
    options: dict[str, Any] = {"steps": 12, "eval_seed": 9, "eval_every": 12, "learning_rate": rate}
    end, last = (_measured(start(keep, keep=keep, **options))[-1] for keep in ("better", "last"))
    assert end.mean == mean
    assert (end.loss < last.loss) == mean


def test_a_layer_that_has_not_moved_is_what_it_was(start: Start) -> None:
    options: dict[str, Any] = {"steps": 2, "eval_seed": 9, "eval_every": 1, "method": "lcsb", "dora": True}
    ours, last = (_measured(start(keep, keep=keep, **options))[1] for keep in ("better", "last"))
    assert ours.loss == last.loss  # the mean over one step


def test_plans_count_the_mean(tiny_path: Path) -> None:
    model = models.load(tiny_path)
    config = TrainConfig(model=str(tiny_path), out="run").for_model(model)
    better, last = (job_of(replace(config, keep=keep), model) for keep in ("better", "last"))
    assert better.state_bytes - last.state_bytes == 4 * better.layers * better.layer_floats
    assert better.disk_bytes > last.disk_bytes
    assert better.moved_states > last.moved_states
    full = TrainConfig(model=str(tiny_path), out="run", train="full")
    assert not full.averages
    assert not isinstance(full.rule, Averaged)
