"""Runs that train SPARTAN: records, resuming, starting from an adapter, use, and what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import models
from featherback.engine.formats.safetensors import SafetensorsFile
from featherback.errors import FeatherbackError
from featherback.exports import FORMATS, formats
from featherback.exports.formats import own
from featherback.models.adapter import Adapter
from featherback.models.form import Form
from featherback.nn.adapters.spartan import SpartanKind
from featherback.runs.config import TrainConfig
from featherback.runs.exporting import export
from featherback.runs.run_file import read
from tests.runs.conftest import Start
from tests.support.tiers import some

SPARTAN: dict[str, Any] = {
    "adapter": "spartan", "rank": None, "schedule": "constant", "learning_rate": 0.05, "parents": 6, "cells": 12,
    "selected_parents": 2,
}  # fmt: skip


@pytest.mark.parametrize("method", some(["mesp", "mebp"], 1))
def test_it_trains_is_resumed_and_started_from(start: Start, method: str) -> None:
    options: dict[str, Any] = {**SPARTAN, "method": method, "eval_seed": 1}
    whole = start("whole", steps=12, **options)
    assert (whole.config.targets, whole.config.adapter_options["cells"]) == (("all",), 12)
    start("parts", steps=5, **options)
    parts = start("parts", resume=True, steps=12, **options)
    files = [(run.path / own.WEIGHTS_FILE).read_bytes() for run in (parts, whole)]
    assert files[0] == files[1]
    losses = [each.loss for each in whole.record.evaluations]
    assert losses[-1] < 0.97 * losses[0]
    plain = start("plain", steps=1, eval_seed=1)
    assert losses[0] == pytest.approx(plain.record.evaluations[0].loss, rel=1e-6)
    assert json.loads((whole.path / own.CONFIG_FILE).read_text())["peft_type"] == "FEATHERBACK_SPARTAN"
    onward = start("onward", steps=1, rank=None, start=str(whole.path), eval_seed=1)
    assert (onward.config.adapter, onward.config.adapter_options["parents"]) == ("spartan", 6)
    assert onward.record.evaluations[0].loss == pytest.approx(min(losses), rel=1e-6)
    with pytest.raises(FeatherbackError, match=r"--cells is 96, but the adapter in .* has 12"):
        start("refused", steps=1, rank=None, start=str(whole.path), adapter="spartan", cells=96)
    with pytest.raises(FeatherbackError, match="--cells was 12, not 24"):
        start("whole", resume=True, steps=13, **{**options, "cells": 24})
    assert read(whole.path / "run.yaml").values["parents"] == 6


def test_layers_of_some_and_hidden_states(start: Start) -> None:
    kept = start("kept", steps=6, layers=("last:1",), **SPARTAN)
    again = start("again", steps=6, layers=("last:1",), hidden_states="recompute", **SPARTAN)
    files = [(run.path / own.WEIGHTS_FILE).read_bytes() for run in (kept, again)]
    assert files[0] == files[1]
    assert len(json.loads((kept.path / own.CONFIG_FILE).read_text())["layers"]) == 1


@pytest.fixture
def saved(tiny_path: Path, tmp_path: Path) -> Path:
    adapter = Adapter(models.load(tiny_path), Form(SpartanKind(parents=4, cells=8, selected_parents=2)))
    rng = np.random.default_rng(0)
    adapter.load_state({name: rng.normal(0, 1, s).astype(np.float32) for name, s in adapter.shapes().items()})
    own.FORMAT.save(adapter, tmp_path / "saved", "base")
    return tmp_path / "saved"


def test_it_is_read_back(tiny_path: Path, saved: Path) -> None:
    loaded = formats.load(models.load(tiny_path), saved)
    assert loaded.form.kind == SpartanKind(parents=4, cells=8, selected_parents=2)
    stored = SafetensorsFile(saved / own.WEIGHTS_FILE)
    assert stored.tensors.keys() == loaded.shapes().keys()
    stored.close()


@pytest.mark.parametrize("to", FORMATS.names)
def test_it_is_not_exported(saved: Path, tiny_path: Path, to: str) -> None:
    with pytest.raises(FeatherbackError, match="SPARTAN is a layer of its own: it cannot be merged into weights"):
        export(saved, to, str(tiny_path))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"peft_type": "LORA"}, "has peft_type 'LORA'; expected one of: FEATHERBACK_SPARTAN"),
        ({"layers": "all"}, "has layers 'all'; it must be a list of numbers"),
        ({"layers": [0, 99]}, "the layers of the model are 0 to"),
        ({"layers": [0]}, "is not a SPARTAN tensor of this model"),
        ({"settings": []}, r"has settings \[\]; it must be a JSON object"),
        ({"settings": {"cells": "many"}}, "cells is 'many'; it must be a whole number"),
        ({"settings": {"beams": 2}}, "beams is not an option of the adapter spartan"),
        ({"settings": {"parents": 4, "cells": 16, "selected_parents": 2}}, r"has shape \(8, \d+\), not \(16, \d+\)"),
    ],
)
def test_what_does_not_fit_is_rejected(saved: Path, tiny_path: Path, change: dict[str, Any], complaint: str) -> None:
    file = saved / own.CONFIG_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(FeatherbackError, match=complaint):
        formats.load(models.load(tiny_path), saved)


def test_options_of_other_kinds() -> None:
    with pytest.raises(
        FeatherbackError, match=r"cells is not an option of the adapter lora, which has no options of its own\. Remove"
    ):
        TrainConfig.of(model="m", out="o", cells=48)
    with pytest.raises(FeatherbackError, match="--rank has no effect with --adapter spartan"):
        TrainConfig.of(model="m", out="o", adapter="spartan", rank=4)
    with pytest.raises(FeatherbackError, match="--targets has no effect with --adapter spartan"):
        TrainConfig.of(model="m", out="o", adapter="spartan", targets="q")
