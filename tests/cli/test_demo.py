"""The whole demo, with a tiny model instead of the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

import featherback as fb
from featherback.cli import demo as demo_module
from featherback.data.demo import HELD_OUT, TRAIN
from tests.cli.conftest import Command


@pytest.mark.full("trains the real model")
def test_the_demo_learns(smollm2_path: Path, tmp_path: Path) -> None:
    """With a quarter of the demo's steps, the held-out loss of the real model falls by more than 20 %."""
    run = fb.train(
        smollm2_path,
        data=TRAIN,
        eval_data=HELD_OUT,
        out=tmp_path / "run",
        steps=demo_module.STEPS // 4,
        warmup=demo_module.WARMUP,
        progress=False,
    )
    assert run.summary.final_eval_loss < 0.5 * run.summary.first_eval_loss
    assert run.summary.final_loss < run.summary.first_loss


def test_demo(
    command: Command, monkeypatch: pytest.MonkeyPatch, chat_model: Path, messages: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("featherback.models.hub.fetch.fetch", lambda *_, **__: chat_model)
    monkeypatch.setattr("featherback.data.demo.TRAIN", messages)
    monkeypatch.setattr("featherback.data.demo.HELD_OUT", messages)
    monkeypatch.setattr(demo_module, "STEPS", 3)
    out = tmp_path / "demo"
    first = command("demo", "--out", out)
    assert first.code == 0
    assert (out / "adapter_model.safetensors").exists()
    for part in ("Before training", "After training", "held-out loss", "peak memory", "adapter"):
        assert part in first.out
    assert command("demo", "--out", out).code == 2
