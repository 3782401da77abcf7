"""Of a run that averages: the adapter that is measured is the one that is kept, and training is what it was."""

from __future__ import annotations

from typing import Any

import pytest
from tests.training.conftest import Start

from featherback import models
from featherback.adapters import formats
from featherback.data.token_file import TokenFile
from featherback.memory.plan import Plan
from featherback.methods import create
from featherback.training.evaluation import evaluate
from featherback.training.run_directory import RunDirectory


@pytest.mark.parametrize("options", [{}, {"dora": True}, {"method": "lcsb"}], ids=str)
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
    assert mid["mean"]
    assert mid["loss"] != pytest.approx(mid_last["loss"], rel=1e-5)
    assert end["loss"] <= end_last["loss"]
    assert (end["loss"] < end_last["loss"]) == end.get("mean", False)


def _measured(run: RunDirectory) -> list[dict[str, Any]]:
    return list(RunDirectory.open(run.path).record["evaluations"])


def _best(run: RunDirectory) -> float:
    return float(RunDirectory.open(run.path).record["summary"]["best_eval_loss"])


@pytest.mark.parametrize(("rate", "mean"), [(1e-3, False), (0.3, True)])
def test_in_the_end_the_better_is_kept(start: Start, rate: float, mean: bool) -> None:
    options: dict[str, Any] = {"steps": 12, "eval_seed": 9, "eval_every": 12, "learning_rate": rate}
    end, last = (_measured(start(keep, keep=keep, **options))[-1] for keep in ("better", "last"))
    assert end.get("mean", False) == mean
    assert (end["loss"] < last["loss"]) == mean
