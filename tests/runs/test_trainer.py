"""The training loop: exact resuming, token-weighted accumulation, early stopping, and the files that stay."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import Plan
from featherback.models.model import Model
from featherback.runs import checkpoint
from featherback.runs.callback import Callback
from featherback.runs.config import TrainConfig
from featherback.runs.events import Note, Step
from featherback.runs.run_directory import RunDirectory
from tests.runs.conftest import Start
from tests.support.tiers import some

EXACT = ("step", "loss", "lr", "grad_norm", "tokens")  # of a metrics line; the others are measured


class _At(Callback):
    """Does something at the end of a step."""

    def __init__(self, step: int, action: Any) -> None:
        self._step, self._action = step, action

    def step(self, event: Step) -> None:
        if event.step == self._step:
            self._action()


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _crash() -> None:
    raise RuntimeError("planted")


def _exact(run: RunDirectory) -> list[dict[str, Any]]:
    return [{key: line[key] for key in EXACT} for line in run.metrics()]


def _adapter_bytes(run: RunDirectory) -> bytes:
    return (run.path / "adapter_model.safetensors").read_bytes()


def _reopened(run: RunDirectory) -> RunDirectory:
    return RunDirectory.open(run.path)


def _same_tiles(config: TrainConfig, model: Model, _: object) -> Plan:
    return Plan.default(model.config, tokens=config.batching.full, compute=config.compute)


class _Notes(Callback):
    """Collects events."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, event: Note) -> None:
        self.notes.append(event.text)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "adapter and optimiser states stay"),
        ({"train": "full", "rank": None}, "saves this memory, and the memory of the model's copy"),
    ],
)
def test_a_run_on_a_ram_disk_says_so_and_keeps_nothing_in_files(
    start: Start, options: dict[str, Any], said: str
) -> None:
    heard = _Notes()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        run = start(f"{place}/run", heard, steps=1, **options)
        assert (run.plan.checkpoints, run.plan.states) == ("ram", "ram")
    assert [note for note in heard.notes if "is on a RAM disk" in note and said in note] == heard.notes != []


@pytest.mark.parametrize("optimizer", some(["adamw", "adamw8bit", "sgd"], 2))
def test_an_interrupted_run_resumes_bit_for_bit(start: Start, tmp_path: Path, optimizer: str) -> None:
    options: dict[str, Any] = {
        "steps": 13, "accumulate": 2, "warmup": 3, "optimizer": optimizer, "eval_seed": 9, "eval_every": 4,
    }  # fmt: skip
    whole = start("whole", **options)
    stopped = start("parts", _At(5, _interrupt), **options)
    assert _reopened(stopped).record.status == "interrupted"
    assert len(list(stopped.metrics())) == 5
    with pytest.raises(RuntimeError, match="planted"):  # and once more, without the time to save
        start("parts", _At(10, _crash), resume=True, save_every=4, **options)
    assert _reopened(stopped).record.status == "failed"
    resumed = start("parts", resume=True, save_every=4, **options)
    assert _exact(resumed) == _exact(whole)
    assert _adapter_bytes(resumed) == _adapter_bytes(whole)
    assert _reopened(resumed).record.evaluations == _reopened(whole).record.evaluations
    ours, theirs = checkpoint.latest(resumed.path), checkpoint.latest(whole.path)
    assert ours is not None
    assert theirs is not None
    assert ours.name == theirs.name
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("options", [{"epsilon": 0.1}, {"directions": 2}])
def test_the_methods_options_reach_it(start: Start, options: dict[str, Any]) -> None:
    mezo: dict[str, Any] = {"method": "mezo", "optimizer": "sgd", "steps": 1}
    asked = start("asked", **mezo, method_options=options)
    assert options.items() <= asked.config.method_options.items()
    assert _adapter_bytes(asked) != _adapter_bytes(start("default", **mezo))


def test_a_longer_run_goes_on_from_a_finished_one(start: Start) -> None:
    whole = start("whole", steps=8, schedule="constant")
    start("parts", steps=3, schedule="constant")
    assert _exact(start("parts", resume=True, steps=8, schedule="constant")) == _exact(whole)


def test_the_plan_is_chosen_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _reopened(start(steps=2)).plan
    monkeypatch.setattr("featherback.runs.choose.plan_for", _crash)
    assert _reopened(start(steps=3, resume=True)).plan == first
    with pytest.raises(TypeError):  # a new budget asks for a new plan
        start(steps=4, resume=True, memory=10**9)


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_twenty_steps_of_mesp_and_mebp_are_one_run(start: Start, monkeypatch: pytest.MonkeyPatch, compute: str) -> None:
    monkeypatch.setattr("featherback.runs.choose.plan_for", _same_tiles)
    runs = [start(name, steps=20, method=name, compute=compute, batch_size=2) for name in ("mesp", "mebp")]
    mesp, mebp = map(_exact, runs)
    assert len(mesp) == 20
    assert mesp == mebp
    assert _adapter_bytes(runs[0]) == _adapter_bytes(runs[1])


MEZO: dict[str, Any] = {"method": "mezo", "optimizer": "sgd", "schedule": "constant"}


def test_mezo_goes_another_way_each_step_and_for_each_seed(start: Start) -> None:
    def moved(name: str, steps: int, seed: int = 0) -> np.ndarray:
        tensors = load_file(start(name, steps=steps, seed=seed, **MEZO).path / "adapter_model.safetensors")
        return np.concatenate([tensors[key].ravel() for key in sorted(tensors) if ".lora_B." in key])

    first, both, other = moved("one", 1), moved("two", 2), moved("other", 1, seed=1)
    for there, here in ((first, both - first), (first, other)):
        cosine = np.vdot(there, here) / (np.linalg.norm(there) * np.linalg.norm(here))
        assert abs(cosine) < 0.2  # B begins at zero, so that these are the steps


def test_lcsb_resumes_bit_for_bit(start: Start) -> None:
    """With the number of updates of each layer, which AdamW's correction depends on."""
    options: dict[str, Any] = {"method": "lcsb", "order": "random", "schedule": "constant"}
    whole = start("whole", steps=9, **options)
    start("parts", steps=4, **options)
    parts = start("parts", resume=True, steps=9, **options)
    assert _exact(parts) == _exact(whole)
    assert _adapter_bytes(parts) == _adapter_bytes(whole)


@pytest.mark.parametrize("method", ["mezo", "sparse_mezo"])
def test_mezo_resumes_bit_for_bit(start: Start, method: str) -> None:
    options = {**MEZO, "method": method}
    whole = start("whole", steps=4, **options)
    start("parts", steps=2, **options)
    parts = start("parts", resume=True, steps=4, **options)
    assert _exact(parts) == _exact(whole)
    assert _adapter_bytes(parts) == _adapter_bytes(whole)


def test_resuming_with_other_options_is_refused(start: Start) -> None:
    start(steps=2)
    with pytest.raises(FeatherbackError, match=r"--rank was 4, not 8"):
        start(steps=2, rank=8, resume=True)


def test_accumulation_is_weighted_by_tokens(start: Start) -> None:
    """Batches of one, two, four or eight sequences, unequal in trained tokens, make the same steps."""
    options: dict[str, Any] = {"steps": 6, "count": 24, "max_grad_norm": 0.5}
    shapes = (8, 1), (4, 2), (2, 4), (1, 8)
    runs = [start(f"{a}x{b}", accumulate=a, batch_size=b, **options) for a, b in shapes]
    first, *others = ([line["loss"] for line in run.metrics()] for run in runs)
    for losses in others:
        np.testing.assert_allclose(losses, first, rtol=2e-6)
    one, *rest = (load_file(run.path / "adapter_model.safetensors") for run in runs)
    for tensors in rest:
        for name, tensor in tensors.items():
            assert np.linalg.norm(tensor - one[name]) <= 1e-5 * np.linalg.norm(one[name])


def test_epochs_take_every_sequence_once_each(start: Start) -> None:
    run = start(epochs=2, accumulate=5)  # 24 batches: four steps of five, one of four
    lines = list(run.metrics())
    assert [line["tokens"] for line in lines] == [80] * 4 + [64]
    assert _reopened(run).record.steps == 5


@pytest.mark.parametrize(("epochs", "tokens"), [(0.5, [80, 16]), (1.25, [80, 80, 80]), (0.01, [16])])
def test_the_last_epoch_may_be_a_part_of_one(start: Start, epochs: float, tokens: list[int]) -> None:
    run = start(epochs=epochs, accumulate=5)  # 12 batches an epoch
    assert [line["tokens"] for line in run.metrics()] == tokens
    assert _reopened(run).record.steps == len(tokens)


def test_a_part_of_an_epoch_is_the_beginning_of_a_whole_one(start: Start) -> None:
    options: dict[str, Any] = {"schedule": "constant"}
    whole, part = start("whole", epochs=2, **options), start("part", epochs=1.5, **options)
    assert _exact(part) == _exact(whole)[:18]
    assert _exact(start("part", epochs=2, resume=True, **options)) == _exact(whole)


def test_a_warm_up_below_one_is_a_share_of_the_steps(start: Start) -> None:
    share, steps = start("share", steps=8, warmup=0.25), start("steps", steps=8, warmup=2)
    assert _exact(share) == _exact(steps)
    assert [line["lr"] for line in share.metrics()][:3] == pytest.approx([0.005, 0.01, 0.01])


def test_rslora_is_the_alpha_that_scales_alike(start: Start) -> None:
    """alpha / sqrt(4) of alpha 8 is alpha / 4 of alpha 16."""
    stabilised, plain = start("rslora", steps=5, alpha=8.0, rslora=True), start("plain", steps=5, alpha=16.0)
    assert _exact(stabilised) == _exact(plain)
    assert _adapter_bytes(stabilised) == _adapter_bytes(plain)
    configs = [json.loads((run.path / "adapter_config.json").read_text()) for run in (stabilised, plain)]
    assert [config["use_rslora"] for config in configs] == [True, False]
    assert _reopened(stabilised).record.configuration.rslora is True
    onward = start("onward", steps=1, start=str(stabilised.path))
    assert onward.config.rslora
    assert next(iter(onward.metrics()))["loss"] < next(iter(plain.metrics()))["loss"]
    with pytest.raises(FeatherbackError, match=r"--rslora is True, but the adapter in .* has False"):
        start("refused", steps=1, start=str(plain.path), rslora=True)


def test_rslora_with_loraplus_learns_at_the_default_rate(start: Start) -> None:
    options: dict[str, Any] = {"rank": 16, "rslora": True, "loraplus_ratio": 16.0, "learning_rate": None}
    run = start(eval_seed=1, steps=20, warmup=0.1, count=40, **options)
    before, *later = (each.loss for each in run.record.evaluations)
    assert later[-1] < 0.9 * before
    assert not run.record.summary.worse


def test_loraplus_moves_b_by_its_ratio(start: Start) -> None:
    """After one step of SGD from the same adapter, B has moved by 4 times as much, and A, whose gradient is 0, not."""
    options: dict[str, Any] = {"steps": 1, "optimizer": "sgd", "max_grad_norm": 0.0}
    runs = [start("plain", **options), start("plus", loraplus_ratio=4.0, **options)]
    plain, plus = (load_file(run.path / "adapter_model.safetensors") for run in runs)
    for name, tensor in plain.items():
        np.testing.assert_allclose(plus[name], (4 if ".lora_B." in name else 1) * tensor, rtol=1e-6)
    assert _reopened(runs[1]).record.configuration.loraplus_ratio == 4.0


@pytest.mark.parametrize("method", some(["mesp", "mebp"], 1))
def test_dora_trains_is_resumed_and_started_from(start: Start, method: str) -> None:
    options: dict[str, Any] = {"dora": True, "method": method, "schedule": "constant"}
    whole = start("whole", steps=12, **options)
    start("parts", steps=5, **options)
    parts = start("parts", resume=True, steps=12, **options)
    assert _adapter_bytes(parts) == _adapter_bytes(whole)
    losses = [line["loss"] for line in whole.metrics()]
    assert losses[-1] < 0.95 * losses[0]
    assert losses[0] == pytest.approx(next(iter(start("plain", steps=1).metrics()))["loss"], rel=1e-6)
    assert json.loads((whole.path / "adapter_config.json").read_text())["use_dora"] is True
    onward = start("onward", steps=1, start=str(whole.path))
    assert onward.config.dora
    assert next(iter(onward.metrics()))["loss"] < 0.95 * losses[0]
    before, after = (load_file(run.path / "adapter_model.safetensors") for run in (whole, onward))
    moved = [name for name in before if "magnitude" in name and (before[name] != after[name]).all()]
    assert len(moved) == 2 * 7
    with pytest.raises(FeatherbackError, match="--lora-dropout does not work with DoRA"):
        start("refused", steps=1, start=str(whole.path), lora_dropout=0.1)


def test_dora_by_mezo(start: Start) -> None:
    run = start(steps=3, method="mezo", dora=True, optimizer="sgd")
    assert json.loads((run.path / "adapter_config.json").read_text())["use_dora"] is True
    assert len([*run.metrics()]) == 3


def test_dropout_is_the_same_after_a_resume_and_however_a_step_is_cut(start: Start) -> None:
    options: dict[str, Any] = {"count": 24, "lora_dropout": 0.3, "schedule": "constant"}
    whole = start("whole", steps=4, accumulate=4, **options)
    start("parts", steps=2, accumulate=4, **options)
    parts = start("parts", resume=True, steps=4, accumulate=4, **options)
    assert _adapter_bytes(parts) == _adapter_bytes(whole)
    batched = start("batched", steps=4, batch_size=4, **options)
    ours, theirs = (load_file(run.path / "adapter_model.safetensors") for run in (batched, whole))
    for name, tensor in theirs.items():
        assert np.linalg.norm(ours[name] - tensor) <= 1e-5 * np.linalg.norm(tensor)
    plain = start("plain", steps=4, accumulate=4, **{**options, "lora_dropout": 0.0})
    assert _exact(plain)[0]["loss"] == _exact(whole)[0]["loss"]  # B is still zero
    assert _exact(plain)[1]["loss"] != _exact(whole)[1]["loss"]
    assert json.loads((whole.path / "adapter_config.json").read_text())["lora_dropout"] == 0.3


def test_the_loss_falls_and_the_directory_is_complete(start: Start) -> None:
    run = start(steps=30, eval_seed=9, eval_every=10)
    record = _reopened(run).record
    summary = record.summary
    assert record.status == "finished"
    assert summary.final_loss < 0.5 * summary.first_loss
    for key in ("peak_footprint_mb", "peak_rss_mb", "step_seconds", "tokens_per_second"):
        assert getattr(summary, key) > 0
    assert summary.peak_rss_mb >= summary.peak_footprint_mb
    assert summary.predicted_rss_mb
    assert [each.step for each in record.evaluations] == [0, 10, 20, 30]
    assert {path.name for path in run.path.iterdir()} == {
        "run.json",
        "run.yaml",
        "metrics.jsonl",
        "adapter_config.json",
        "adapter_model.safetensors",
        "loss.svg",
        "report.html",
        "tokens",
        "checkpoint-000030.fbc",
    }
    line = json.loads((run.path / "metrics.jsonl").read_text().splitlines()[0])
    assert line.keys() == {"step", "loss", "lr", "grad_norm", "tokens", "seconds", "footprint_mb", "rss_mb"}
    assert record.machine.instruction_set.endswith(")")  # without threads: the run may have others
    assert record.configuration.rank == 4


def test_the_best_adapter_is_kept_and_the_run_stops_when_it_no_longer_improves(start: Start) -> None:
    """A learning rate that soon overshoots: the directory's adapter is that of the best evaluation."""
    options: dict[str, Any] = {"eval_seed": 9, "eval_every": 2, "learning_rate": 0.2, "schedule": "constant"}
    run = start(steps=200, patience=3, **options)
    record = _reopened(run).record
    assert record.status == "stopped early"
    later = record.evaluations[1:]
    best = min(later, key=lambda evaluation: evaluation.loss)
    assert record.summary.best_step == best.step < later[-1].step < 200
    assert len(later) == best.step // 2 + 3
    shorter = start("best", steps=best.step, **options)
    assert _adapter_bytes(shorter) == _adapter_bytes(run)


def test_a_loss_that_is_not_finite_ends_the_run(start: Start) -> None:
    with pytest.raises(FeatherbackError, match=r"not finite at step \d+.*lower --lr"):
        start(steps=50, learning_rate=1e30, max_grad_norm=0.0, optimizer="sgd")


def test_a_second_process_is_kept_out(start: Start) -> None:
    def train_too() -> None:
        with pytest.raises(FeatherbackError, match="another process"):
            start(steps=3, resume=True)

    start(steps=3, reporter=_At(1, train_too))


def test_the_peak_of_a_run_is_kept_when_it_is_resumed(start: Start) -> None:
    run = start(steps=2)
    run.update(summary=replace(run.record.summary, peak_rss_mb=1e6))
    assert _reopened(start(steps=3, resume=True)).record.summary.peak_rss_mb == 1e6


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("run.json", '{"format": 3}', "another form than this one"),
        ("metrics.jsonl", "not JSON\n", "metrics.jsonl is damaged"),
        ("checkpoint-000002.fbc", '{"step": 2}', "checkpoint-000002.fbc is not a checkpoint"),
    ],
)
def test_a_damaged_run_is_refused(start: Start, name: str, content: str, complaint: str) -> None:
    run = start(steps=2)
    (run.path / name).write_text(content)
    with pytest.raises(FeatherbackError, match=complaint):
        start(steps=3, resume=True)
