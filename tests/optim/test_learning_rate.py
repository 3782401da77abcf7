"""The default learning rate follows the model's width, and a run records it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from featherback import models, optim
from featherback.errors import FeatherbackError
from featherback.runs.config import TrainConfig
from tests.support.tiny_models import TINY_LLAMA, write_tiny


def test_wider_models_learn_at_smaller_rates() -> None:
    for name in ("adamw", "adamw8bit"):
        rates = [optim.default_learning_rate(name, width) for width in (576, 896, 2048, 3584)]
        assert rates == [2e-3, 1e-3, 3e-4, 1.3e-4]
    assert {optim.default_learning_rate("sgd", width) for width in (576, 3584)} == {0.1}


@pytest.mark.parametrize(
    ("options", "divisor"),
    [
        ({"rank": 16}, 1),
        ({"rank": 16, "rslora": True}, 4),
        ({"rank": 64, "rslora": True}, 8),
        ({"loraplus_ratio": 16.0}, 4),
        ({"rank": 16, "rslora": True, "loraplus_ratio": 16.0}, 16),
    ],
)
def test_the_rate_accounts_for_rslora_and_loraplus(tmp_path: Path, options: dict[str, Any], divisor: float) -> None:
    """rsLoRA's scale is sqrt(rank) times LoRA's; A and B of LoRA+ have LoRA's rate as their geometric mean."""
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    plain, other = (
        TrainConfig(model="m", out="o", **named).for_model(model).peak_learning_rate for named in ({}, options)
    )
    assert other == pytest.approx(plain / divisor, rel=0.05)  # each has two digits


@pytest.mark.parametrize("name", ["adafactor", "adalomo", "apollo", "apollo_mini", "mlorc"])
def test_what_is_for_whole_models_is_refused_for_adapters(name: str) -> None:
    with pytest.raises(
        FeatherbackError,
        match=f"--optimizer {name} cannot train adapters; .* lomo or sgd, or train the whole model with --train full",
    ):
        TrainConfig(model="m", out="o", optimizer=name)


def test_rates_of_whole_models_follow_the_width_where_steps_do_not() -> None:
    """Adam's step has one size whatever the gradient; AdaLomo's is a share of the weights, LOMO's the gradient's."""
    for name in ("adamw", "adamw8bit", "mlorc"):
        rates = [optim.full_learning_rate(name, width) for width in (576, 896, 2048, 3584)]
        assert rates == [1e-4, 6.4e-5, 2.8e-5, 1.6e-5]
    for name in ("adafactor", "adalomo", "lomo", "sgd"):
        assert optim.full_learning_rate(name, 576) == optim.full_learning_rate(name, 3584)


@pytest.mark.parametrize(("name", "rate"), [("adalomo", 5e-4), ("adamw", 6e-4), ("lomo", 1e-3)])
def test_whole_models_have_rates_of_their_own(tmp_path: Path, name: str, rate: float) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    config = TrainConfig(model="m", out="o", optimizer=name, train="full")
    assert config.for_model(model).peak_learning_rate == rate


@pytest.mark.parametrize("named", [None, 3e-4])
def test_a_run_knows_its_rate(tmp_path: Path, named: float | None) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    config = TrainConfig(model="m", out="o", learning_rate=named)
    expected = named or optim.default_learning_rate("adamw", TINY_LLAMA.hidden_size)
    assert config.for_model(model).peak_learning_rate == expected


def test_a_record_without_one_is_refused() -> None:
    with pytest.raises(FeatherbackError, match="has no learning rate"):
        assert TrainConfig(model="m", out="o").peak_learning_rate
