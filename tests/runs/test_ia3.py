"""Runs that train IA3: defaults, records, resuming, starting from an adapter, and options that do not apply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from featherback import models
from featherback.errors import FeatherbackError
from featherback.exports.formats import peft
from featherback.models.adapter import Adapter
from featherback.models.form import Form
from featherback.nn.adapters.ia3 import IA3Kind
from featherback.runs.changes import with_overrides
from featherback.runs.config import TrainConfig
from tests.runs.conftest import Start
from tests.support.tiers import some

IA3: dict[str, Any] = {"adapter": "ia3", "rank": None, "schedule": "constant", "learning_rate": 0.2}


@pytest.mark.parametrize("method", some(["mesp", "mebp"], 1))
def test_it_trains_is_resumed_and_started_from(start: Start, method: str) -> None:
    options: dict[str, Any] = {**IA3, "method": method, "eval_seed": 1}
    whole = start("whole", steps=12, **options)
    assert whole.config.targets == ("k_proj", "v_proj", "down_proj")
    assert (whole.config.rank, whole.config.alpha, whole.config.adapter) == (None, None, "ia3")
    start("parts", steps=5, **options)
    parts = start("parts", resume=True, steps=12, **options)
    files = [(run.path / "adapter_model.safetensors").read_bytes() for run in (parts, whole)]
    assert files[0] == files[1]
    losses = [each.loss for each in whole.record.evaluations]
    assert losses[-1] < 0.95 * losses[0]
    plain = start("plain", steps=1, eval_seed=1)
    assert losses[0] == pytest.approx(plain.record.evaluations[0].loss, rel=1e-6)
    assert json.loads((whole.path / "adapter_config.json").read_text())["peft_type"] == "IA3"
    onward = start("onward", steps=1, rank=None, start=str(whole.path), eval_seed=1)
    assert onward.config.adapter == "ia3"
    assert onward.record.evaluations[0].loss == pytest.approx(min(losses), rel=1e-6)
    with pytest.raises(FeatherbackError, match=r"--adapter is lora, but the adapter in .* has ia3"):
        start("refused", steps=1, rank=None, start=str(whole.path), adapter="lora")
    with pytest.raises(FeatherbackError, match="--adapter was ia3, not lora"):
        start("whole", resume=True, steps=13, **{**options, "adapter": "lora"})


def test_its_learning_rate_does_not_depend_on_the_width(start: Start) -> None:
    assert start(steps=1, **{**IA3, "learning_rate": None}).config.learning_rate == 0.02


def test_it_by_mezo(start: Start) -> None:
    run = start(steps=3, method="mezo", optimizer="sgd", **IA3)
    assert all((values != 1).any() for values in load_file(run.path / "adapter_model.safetensors").values())


def test_training_does_not_start_where_other_sides_are_scaled(start: Start, tiny_path: Path, tmp_path: Path) -> None:
    adapter = Adapter(models.load(tiny_path), Form(IA3Kind(feedforward=("v_proj",)), ("k", "v")))
    peft.FORMAT.save(adapter, tmp_path / "other")
    with pytest.raises(FeatherbackError, match="adapts v_proj in a way that --adapter ia3 does not support"):
        start(steps=1, rank=None, start=str(tmp_path / "other"))


@pytest.mark.parametrize(
    "option",
    [{"rank": 4}, {"alpha": 8.0}, {"rslora": True}, {"dora": True}, {"lora_dropout": 0.1}, {"loraplus_ratio": 2}],
)
def test_options_of_low_rank_are_not_for_it(option: dict[str, Any]) -> None:
    name = next(iter(option)).replace("_", "-")
    with pytest.raises(FeatherbackError, match=f"--{name} has no effect with --adapter ia3. Remove one"):
        TrainConfig.of(model="m", out="o", adapter="ia3", **option)
    TrainConfig.of(model="m", out="o", adapter="lora", **option)


def test_dora_by_either_name() -> None:
    one, other = (TrainConfig.of(model="m", out="o", **each) for each in ({"dora": True}, {"adapter": "dora"}))
    assert one.fixed() == other.fixed()


def test_adapters_are_for_adapters() -> None:
    with pytest.raises(FeatherbackError, match="--adapter only works with adapters"):
        TrainConfig.of(model="m", out="o", adapter="ia3", train="full")


def test_what_is_not_for_another_kind_is_left_out_of_a_file_of_options() -> None:
    file = {"rank": 4, "alpha": 8.0, "targets": ("q_proj",), "learning_rate": 1e-3, "steps": 5}
    assert with_overrides(file, {"adapter": "ia3"}) == {"steps": 5, "adapter": "ia3"}
    assert with_overrides(file, {"adapter": "dora"})["rank"] == 4
