"""A run whose plan keeps slopes measures the cosine with the exact gradient, records it, and says it everywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import methods, models
from featherback.cli.gradient import describe_gradient
from featherback.cli.preamble import print_preamble
from featherback.core.noise import Draw
from featherback.data.batch import Batch
from featherback.engine.host.paged import PagedArray
from featherback.methods.memory import planner
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA
from featherback.models.model import Model
from featherback.runs.config import TrainConfig
from featherback.runs.cosine import cosines
from featherback.runs.preparation import prepare_run
from featherback.runs.rehearsal import rehearsed_baseline
from featherback.runs.run_directory import RunDirectory
from featherback.runs.trainer import train_run
from featherback.view.report.page import write_report
from tests.runs import runs
from tests.support.families.starcoder2 import TINY_STARCODER2
from tests.support.tiers import some
from tests.support.tiny_chat import N_VOCAB, byte_level_metadata
from tests.support.tiny_models import write_tiny

TWO_BITS = {"keep_precision": "2bit"}


@pytest.fixture(scope="module")
def ungated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny StarCoder2, wide enough for codes to be worth their memory."""
    config = replace(TINY_STARCODER2, intermediate_size=1536)
    return write_tiny(tmp_path_factory.mktemp("model") / "ungated.gguf", config)


def gradient_of(model: Model, adapter: LoRA, plan: Plan, batch: Batch) -> np.ndarray[Any, Any]:
    method = methods.create("mesp", model, adapter, plan)
    found = PagedArray(adapter.parameters.layers, adapter.layer_size)
    method.gradients(batch, 1.0, found)
    rows = np.empty((found.layers, found.size), np.float32)
    for layer, row in enumerate(rows):
        found.read(layer, row)
    return rows


def test_the_cosine_is_that_of_both_gradients(ungated: Path) -> None:
    model = models.load(ungated)
    adapter = LoRA(model, 4, targets="q,v,up")
    random = np.random.default_rng(0)
    for layer in range(2):
        adapter.parameters.write(layer, (0.1 * random.standard_normal(adapter.layer_size)).astype(np.float32))
    batch = Batch.from_sequences([random.integers(0, 101, 40)])
    exact = Plan.default(model.config, tokens=40, compute="fp32")
    plan = replace(exact, keep={"up": 2}, encodings={"up": "regelu2"})
    a, b = (gradient_of(model, adapter, each, batch).astype(np.float64) for each in (exact, plan))
    by_layer = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    truth = (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)
    room = PagedArray(adapter.parameters.layers, adapter.layer_size)

    def create(each: Plan) -> methods.Method:
        return methods.create("mesp", model, adapter, each)

    found = cosines(plan, batch, create, room, Draw())
    np.testing.assert_allclose(found, (truth, by_layer.min()), rtol=1e-6)
    assert found[0] < 0.9999
    room.clear()
    np.testing.assert_allclose(cosines(exact, batch, create, room, Draw()), 1, rtol=1e-6)


def test_a_run_measures_and_says_it(
    ungated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is memory for everything, so the planner would keep exact values.
    monkeypatch.setattr(planner, "_encodings", lambda job: [{"up": "regelu2"}])
    run = runs.prepared(ungated, tmp_path / "run", steps=1, targets=("q", "v", "up"), method_options=TWO_BITS)
    assert run.plan.approximated == {"up": 2}
    found = run.record.gradient
    assert found.approximated == {"up": 2}
    assert 0.5 < found.lowest_cosine <= found.cosine < 0.9999
    print_preamble(run, models.load(run.config.model))
    assert f"cosine with the exact gradient {found.cosine:.3f}" in " ".join(capsys.readouterr().out.split())
    runs.finished(run)
    write_report(RunDirectory.open(run.path))
    assert f"{found.cosine:.3f}" in (run.path / "report.html").read_text()
    again = runs.resumed(ungated, run.path, steps=2)  # the same plan: not measured again
    assert again.record.gradient == found
    again.release()


PAIRS = [{"prompt": f"What is {i}?", "chosen": f"Sure, {i}", "rejected": f"No {i}"} for i in range(9)]
TEXTS = [{"text": f"number {i}", "label": "odd" if i % 2 else "even"} for i in range(9)]


@pytest.mark.parametrize(
    ("objective", "records"), some([("classify", TEXTS), ("reward", PAIRS), ("simpo", PAIRS), ("dpo", PAIRS)], 2)
)
def test_every_form_of_data_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str, records: list[dict[str, Any]]
) -> None:
    """The batch is one of the run's own objective, if that needs no pass first. A new head passes a gradient on."""
    monkeypatch.setattr(planner, "_encodings", lambda job: [{"up": "regelu2"}])
    tiny = replace(TINY_STARCODER2, intermediate_size=1536, vocab_size=N_VOCAB)
    model = write_tiny(tmp_path / "chat.gguf", tiny, metadata=byte_level_metadata())
    config = TrainConfig.of(
        model=str(model), data="records", out=str(tmp_path / "run"), objective=objective, compute="fp32", steps=1,
        rank=4, targets=("q", "v", "up"), threads=1, seq_len=64, method_options=TWO_BITS,
    )  # fmt: skip
    run = prepare_run(config, records, baseline=rehearsed_baseline)
    found = run.record.gradient
    assert found.approximated == {"up": 2}
    assert 0.5 < found.lowest_cosine <= found.cosine < 0.99999
    train_run(run)
    assert RunDirectory.open(run.path).record.status == "finished"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"targets": ("q", "v", "down")}, "adapter on down needs the activation itself"),
        ({"train": "full"}, "gradients of the weights need the activation itself"),
        ({"targets": ("q", "v")}, "Within this budget"),
    ],
)
def test_why_a_gradient_is_exact(ungated: Path, options: dict[str, Any], said: str) -> None:
    model = models.load(ungated)
    config = TrainConfig(model=str(ungated), out="", method_options=TWO_BITS, **options)
    text = describe_gradient(config, model, Plan.default(model.config, tokens=64), None)
    assert text.startswith("exact: ")
    assert said in text
    assert "0.0 MB a block instead of 0.2 MB" in text


def test_gated_units_save_nothing(tiny_path: Path, tmp_path: Path) -> None:
    run = runs.prepared(tiny_path, tmp_path / "run", steps=1, method_options=TWO_BITS)
    assert not run.plan.approximated
    assert run.record.gradient is None
    run.release()
    text = describe_gradient(run.config, models.load(tiny_path), run.plan, None)
    assert "is gated" in text
    assert "would save 0 MB" in text
    exact = replace(run.config, method_options={"keep_precision": "exact"})
    assert describe_gradient(exact, models.load(tiny_path), run.plan, None) == ""
