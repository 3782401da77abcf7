"""Runs with another objective than next-token loss: reporting, resuming and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from featherback.errors import FeatherbackError
from featherback.nn.objectives import OBJECTIVES
from featherback.runs.config import TrainConfig
from tests.runs.conftest import SEQ_LEN, Start, sequences
from tests.support.oracle import reference_model

SMOOTHED: dict[str, Any] = {"objective": "smoothed", "label_smoothing": 0.3}


def first_loss(path: Path, share: float) -> float:
    """Return the loss of a batch of the first sequences, computed with PyTorch."""
    model, total, count = reference_model(path), 0.0, 0
    for tokens, labels in sequences(1):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens])).logits[0, :-1].double()
        targets = torch.tensor(labels[1:])
        total += torch.nn.functional.cross_entropy(logits, targets, label_smoothing=share, reduction="sum").item()
        count += int((targets != -100).sum())
    return total / count


FULL: dict[str, Any] = {"rank": None, "train": "full", "dequantize": True, "master": "fp32", "learning_rate": 1e-4}


@pytest.mark.parametrize("whole", [{}, FULL], ids=["adapter", "whole"])
def test_training_loss_is_the_objectives_and_held_out_loss_is_not(
    start: Start, tiny_path: Path, whole: dict[str, Any]
) -> None:
    options = {"steps": 1, "count": 1, "batch_tokens": SEQ_LEN, "eval_seed": 7, **whole}
    runs = [start("smoothed", **options, **SMOOTHED), start("plain", **options)]
    for run, share in zip(runs, (0.3, 0.0)):
        (line,) = run.metrics()
        assert line["loss"] == pytest.approx(first_loss(tiny_path, share), rel=1e-5)
    before = [run.record.evaluations[0].loss for run in runs]
    assert before[0] == before[1]
    after = [run.record.evaluations[-1].loss for run in runs]
    assert after[0] != after[1]


def test_another_objective_is_another_run(start: Start) -> None:
    run = start(steps=1, eval_share=0.0, **SMOOTHED)
    assert (run.config.objective, run.config.objective_options) == ("smoothed", {"label_smoothing": 0.3})
    again = start(steps=2, eval_share=0.0, resume=True, **SMOOTHED)
    assert len(list(again.metrics())) == 2
    for other in ({"objective": "next_token"}, {"objective": "smoothed", "label_smoothing": 0.2}):
        with pytest.raises(FeatherbackError, match="Cannot resume"):
            start(steps=2, eval_share=0.0, resume=True, **other)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_that_is_none(share: float) -> None:
    with pytest.raises(FeatherbackError, match=r"--label-smoothing is .*; it must be at least 0 and less than 1"):
        TrainConfig.of(model="m", out="o", objective="smoothed", label_smoothing=share)


def test_smoothing_belongs_to_its_objective() -> None:
    with pytest.raises(FeatherbackError, match="--label-smoothing is not an option of the objective next_token"):
        TrainConfig.of(model="m", out="o", label_smoothing=0.1)


def test_names() -> None:
    preferences = ("dpo", "ipo", "kto", "orpo", "robust_dpo", "simpo")
    own_answers = ("dapo", "dr_grpo", "grpo", "gspo", "rft")
    others = ("classify", "contrastive", "next_token", "reward", "smoothed")
    assert set(OBJECTIVES.names) == {*preferences, *own_answers, *others}
    assert list(OBJECTIVES.names) == sorted(OBJECTIVES.names)
