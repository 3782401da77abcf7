"""Runs with --layers: what is trained, kept on disk, resumed and continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import models
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.runs import checkpoint
from featherback.runs.by_name import fields_of
from featherback.runs.config import TrainConfig
from featherback.runs.configs import convert
from featherback.runs.run_directory import RunDirectory
from tests.runs.conftest import Start
from tests.support.tiers import some


def test_only_the_chosen_layers_are_trained_and_saved(start: Start, tiny_path: Path) -> None:
    run, every = start(steps=3, layers="last:1"), start("every", steps=3)
    model = models.load(tiny_path)
    last = len(model.blocks) - 1
    adapter = formats.load(model, run.path)
    assert adapter.layers == (last,)
    assert RunDirectory.open(run.path).config.layers == (str(last),)
    sizes = [path.stat().st_size for path in (checkpoint.latest(each.path) for each in (run, every)) if path]
    assert sizes[0] < 0.7 * sizes[1]
    metrics = [list(each.metrics()) for each in (run, every)]
    assert metrics[0][0]["loss"] == metrics[1][0]["loss"]
    assert metrics[0][0]["grad_norm"] < metrics[1][0]["grad_norm"]


@pytest.mark.parametrize("method", some(["mesp", "lcsb", "mezo"], 1))
def test_resumed_with_the_same_bits(start: Start, method: str) -> None:
    options: dict[str, Any] = {"layers": "last:1", "method": method, "schedule": "constant"}
    whole = start("whole", steps=4, **options)
    start("parts", steps=2, **options)
    parts = start("parts", steps=4, resume=True, **options)
    assert [line["loss"] for line in whole.metrics()] == [line["loss"] for line in parts.metrics()]
    name = "adapter_model.safetensors"
    assert (whole.path / name).read_bytes() == (parts.path / name).read_bytes()


def test_a_resumed_run_keeps_its_layers(start: Start) -> None:
    start(steps=1, layers="last:1")
    start(steps=2, resume=True, layers="last:50%")  # the same, in other words
    with pytest.raises(FeatherbackError, match=r"--layers was 1, not 0"):
        start(steps=3, resume=True, layers="0")


def test_another_run_continues_on_the_same_layers(start: Start, tmp_path: Path, tiny_path: Path) -> None:
    first = start("first", steps=2, layers="last:1")
    then = start("then", steps=1, start=str(first.path), learning_rate=1e-9, rank=None)
    model = models.load(tiny_path)
    before, after = (formats.load(model, run.path) for run in (first, then))
    assert before.layers == after.layers == (1,)
    for name, values in before.state().items():
        np.testing.assert_allclose(after.state()[name], values, atol=1e-6)
    with pytest.raises(FeatherbackError, match=r"--layers is 0, but the adapter in .* has 1"):
        start("other", steps=1, start=str(first.path), rank=None, layers="0")


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ("iters: 3\nfine_tune_type: lora\nnum_layers: 8", "last:8"),
        ("iters: 3\nfine_tune_type: lora\nnum_layers: -1", "all"),
        ("lora_r: 8\nuse_peft: true\nlayers_to_transform: 0,5", "0,5"),
    ],
)
def test_other_tools_names(tmp_path: Path, keys: str, layers: str) -> None:
    file = tmp_path / "lora.yaml"
    file.write_text(keys)
    assert convert(file).values["layers"] == layers
    given = fields_of({"layers": "0, 5,10-20"}, "train")
    assert TrainConfig.of(model="m", out="o", **given).layers == ("0", "5", "10-20")
