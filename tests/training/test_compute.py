"""--compute auto: which is chosen, that it is remembered, and that it gives way where memory is short."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny
from tests.training.conftest import Start, sequences

from featherback import models
from featherback.cli.options import compute_of
from featherback.errors import FeatherbackError
from featherback.training import choose
from featherback.training.config import AUTO, TrainConfig
from featherback.training.launch import resume_run
from featherback.training.outlook import least_memory
from featherback.training.run_directory import RunDirectory
from featherback.training.worker_process import worker_baseline

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


def test_a_run_remembers_what_it_computes_in(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    favour(monkeypatch, "int16")
    run = start(compute=AUTO, steps=2)
    assert run.config.compute == AUTO
    assert (run.record["plan"]["compute"], run.record["plan"]["rates"]["int16"]) == ("int16", 100)
    assert compute_of(AUTO, run.path) == "int16"
    assert compute_of("fp32", run.path) == "fp32"
    assert compute_of(AUTO, None) == "bf16"

    favour(monkeypatch, "fp32")  # on another day: the plan is made anew, for another budget
    values = {**run.config.to_json(), "steps": 4, "memory": 10**9}
    later = resume_run(values, sequences())
    later.release()
    assert later.config.memory == 10**9
    assert later.record["plan"]["compute"] == "int16"
    assert start("other", compute=AUTO, steps=1).record["plan"]["compute"] == "fp32"


def test_it_gives_way_where_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = tiny(TINY_LLAMA, hidden_size=512, intermediate_size=2048, max_position_embeddings=4096)
    model = models.load(write_tiny(tmp_path / "wide.gguf", shape))
    config = TrainConfig.of(
        model=str(model.path),
        data="tokens",
        out=str(tmp_path / "run"),
        seq_len=256,
        method="mebp",
        compute=AUTO,
    ).for_model(model)
    baseline = worker_baseline()
    least = {
        compute: least_memory(TrainConfig.of(**{**config.to_json(), "compute": compute}), model, baseline)
        for compute in ("bf16", "fp32")
    }
    assert least["bf16"] + 4 * MB < least["fp32"]
    favour(monkeypatch, "fp32")

    def chosen(memory: int) -> str:
        return choose.plan_for(
            TrainConfig.of(**{**config.to_json(), "memory": memory}), model, lambda: baseline
        ).compute

    assert chosen(least["fp32"]) == "fp32"
    assert chosen(least["bf16"]) == "bf16"
    with pytest.raises(FeatherbackError, match=f"the least is --memory {least['bf16'] // MB}MB"):
        chosen(least["bf16"] // 2)


def test_a_run_without_a_record_of_its_plan_is_of_no_help(start: Start) -> None:
    run = start(steps=1)
    run.update(plan={})
    assert compute_of(AUTO, RunDirectory.open(run.path).path) == "bf16"
