"""--compute auto: the choice, that it is remembered, and that it uses less memory if memory is short."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from featherback import models
from featherback.cli.preamble import describe_compute
from featherback.core.decode import encode
from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import Plan
from featherback.runs import choose
from featherback.runs.compute import resolve_compute
from featherback.runs.config import TrainConfig
from featherback.runs.outlook import least_memory, outlook
from featherback.runs.panels.run import AUTO
from featherback.runs.preparation import resume_run
from featherback.runs.worker_process import worker_baseline
from tests.runs.conftest import Start, sequences
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

MB = 10**6


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ((100, 60, 50), "bf16"),
        ((100, 94, 50), "bf16"),
        ((100, 96, 50), "int16"),
        ((97, 130, 100), "int16"),
        ((97, 102, 100), "fp32"),
        ((100, 94, 96), "fp32"),
        ((0, 0, 0), "fp32"),
    ],
)
def test_the_most_exact_of_those_as_fast_as_the_fastest(rates: tuple[float, ...], chosen: str) -> None:
    assert choose.best(dict(zip(("bf16", "int16", "fp32"), rates))) == chosen


def favour(monkeypatch: pytest.MonkeyPatch, fastest: str) -> None:
    def rates(*_: object) -> dict[str, float]:
        return dict.fromkeys(("bf16", "int16", "fp32"), 1e9) | {fastest: 1e11}

    monkeypatch.setattr(choose, "product_rates", rates)


def test_a_run_remembers_what_it_computes_in(
    start: Start, monkeypatch: pytest.MonkeyPatch, remembered_folder: Path
) -> None:
    favour(monkeypatch, "int16")
    run = start(compute=AUTO, steps=2)
    assert run.config.compute == AUTO
    assert (run.record.plan.compute, run.record.plan.rates["int16"]) == ("int16", 100)
    for place in (run.path, run.path / "adapter_model.safetensors", str(run.path)):
        assert resolve_compute(AUTO, "model.gguf", place) == "int16"
    assert resolve_compute("fp32", run.path) == "fp32"
    assert resolve_compute(AUTO, "model.gguf", None) == "bf16"

    favour(monkeypatch, "fp32")  # on another day: the plan is made anew, for another budget
    values = {**encode(run.config), "steps": 4, "memory": 10**9}
    later = resume_run(values, sequences())
    later.release()
    assert later.config.memory == 10**9
    assert (later.record.plan.compute, later.record.plan.rates["int16"]) == ("int16", 100)
    again = start("other", compute=AUTO, steps=1)  # what was measured is remembered
    assert (again.record.plan.compute, again.record.plan.rates["int16"]) == ("int16", 100)
    shutil.rmtree(remembered_folder)
    assert start("third", compute=AUTO, steps=1).record.plan.compute == "fp32"


def test_it_gives_way_where_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = tiny(TINY_LLAMA, hidden_size=512, intermediate_size=2048, max_position_embeddings=4096)
    model = models.load(write_tiny(tmp_path / "wide.gguf", shape))
    config = TrainConfig.of(
        model=str(model.path), data="tokens", out=str(tmp_path / "run"), seq_len=256, method="mebp", compute=AUTO
    ).for_model(model)
    baseline = worker_baseline()
    least = {
        compute: least_memory(TrainConfig.of(**{**encode(config), "compute": compute}), model, baseline)
        for compute in ("bf16", "fp32")
    }
    assert least["bf16"] + 4 * MB < least["fp32"]
    favour(monkeypatch, "fp32")

    def chosen(memory: int) -> Plan:
        return choose.plan_for(replace(config, memory=memory), model, lambda: baseline)

    plenty, short = chosen(4 * least["fp32"]), chosen(least["bf16"])
    assert (plenty.compute, short.compute) == ("fp32", "bf16")
    assert plenty.least_mb == short.least_mb == least["bf16"] // MB
    assert plenty.fastest_mb == short.fastest_mb
    rows = outlook(replace(config, memory=least["bf16"]), model, baseline, {})  # plan says what train does
    (mebp,) = (row.plan for row in rows if row.method == "mebp")
    assert mebp is not None
    assert mebp.compute == "bf16"
    assert "bf16 because memory is short (measured here, " in describe_compute(short.compute, short.rates)
    with pytest.raises(FeatherbackError, match=f"these options need at least --memory {least['bf16'] // MB}MB"):
        chosen(least["bf16"] // 2)


def test_an_earlier_run_says_what_it_computed_in(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    run = start(steps=1, compute="fp32")
    run.update(plan=None)
    assert resolve_compute(AUTO, run.path) == "fp32"
    (run.path / "run.json").write_text("{")
    assert resolve_compute(AUTO, run.path) == "bf16"
    said = capsys.readouterr().err
    assert "run.json is not valid JSON" in said
    assert "Using --compute bf16." in said
