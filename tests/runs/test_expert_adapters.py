"""Runs that train experts and routers: options, records, resuming, starting from an adapter, and the stated size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from featherback import models
from featherback.cli.preamble import describe_size, describe_trained
from featherback.engine.formats.types import TensorType
from featherback.exports import formats
from featherback.optim import layerwise
from featherback.runs import parse
from featherback.runs.config import TrainConfig
from tests.models.test_hf_folder import folder_and_gguf
from tests.runs.conftest import Start
from tests.support import tiers
from tests.support.families import cases
from tests.support.families.qwen3moe import TINY_QWEN3MOE
from tests.support.tiny_models import tiny, write_tiny

pytestmark = pytest.mark.usefixtures("own_cache")
TARGETS = ("q_proj", "router", "gate_exps", "up_exps", "down_exps")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    config = tiny(TINY_QWEN3MOE, vocab_size=101)
    return write_tiny(tmp_path / "moe.gguf", config, {"": TensorType.Q8_0, "router": TensorType.F32})


def test_it_trains_is_resumed_and_started_from(start: Start, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"model": str(path), "targets": "q,experts,router", "rank": 2, "schedule": "constant"}
    whole = start("whole", steps=4, **options)
    assert whole.config.targets == TARGETS
    start("parts", steps=2, **options)
    monkeypatch.setattr(layerwise, "TOGETHER", 100)  # every tensor by itself, and norms in pieces
    parts = start("parts", resume=True, steps=4, **options)
    stored = [load_file(run.path / "adapter_model.safetensors") for run in (whole, parts)]
    for name, values in stored[0].items():
        np.testing.assert_allclose(stored[1][name], values, rtol=1e-5, atol=1e-7)
    entries = json.loads((whole.path / "adapter_config.json").read_text())
    assert entries["target_modules"] == ["q_proj"]
    assert entries["target_parameters"] == ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"]
    assert entries["rank_pattern"] == {"mlp.experts.gate_up_proj": 4}
    assert entries["alpha_pattern"] == {"mlp.experts.gate_up_proj": 32}
    assert formats.form(models.load(path), whole.path).targets == TARGETS
    onward = start("onward", steps=1, start=str(whole.path), model=str(path), rank=None)
    assert onward.config.targets == TARGETS


@pytest.mark.parametrize("name", tiers.some(["gpt-oss", "qwen3moe", "granitemoe"], 1))
def test_a_run_on_a_folder_is_resumed(start: Start, tmp_path: Path, name: str) -> None:
    folder, _ = folder_and_gguf(tmp_path, cases()[name][0])
    options: dict[str, Any] = {"model": str(folder), "targets": "q,experts", "rank": 2, "schedule": "constant"}
    whole = start("whole", steps=4, **options)
    start("parts", steps=2, **options)
    parts = start("parts", resume=True, steps=4, **options)
    stored = [load_file(run.path / "adapter_model.safetensors") for run in (whole, parts)]
    assert all(np.array_equal(values, stored[1][each]) for each, values in stored[0].items())


def test_the_size_is_stated_first(path: Path) -> None:
    model = models.load(path)
    config = TrainConfig.of(model=str(path), data="x", out="y", targets="all,experts", rank=2).for_model(model)
    size = 4 * config_values(model)
    label, text = describe_trained(config, model)
    assert label == "adapter"
    assert text.startswith(f"{size / 4e6:.4g}M weights (")
    assert text.endswith(", on q,k,v,o,experts")
    usual = TrainConfig.of(model=str(path), data="x", out="y").for_model(model)
    assert describe_size(usual.form, model) == ""


def config_values(model: models.Model) -> int:
    """Trained values of attention and experts at rank 2."""
    blocks = model.blocks
    places = [(block, name) for block in blocks for name in block.projections if name != "router"]
    shapes = [block.shape(name) for block, name in places]
    return sum(2 * (shape[-1] + shape[-2]) * (shape[0] if len(shape) == 3 else 1) for shape in shapes)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("all", ("all",)),
        ("all,experts", ("all", "experts")),
        ("router,q", ("q_proj", "router")),
        ("experts", ("experts",)),
        (["q_proj", "gate_exps", "up_exps", "down_exps"], ("q_proj", "gate_exps", "up_exps", "down_exps")),
    ],
    ids=str,
)
def test_targets_stay_until_the_model_is_known(given: Any, wanted: tuple[str, ...]) -> None:
    assert parse.targets(given) == wanted
