"""Runs that learn from a teacher: its pass, its file, the mixture of losses, and resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from featherback import models
from featherback.data import teacher_file
from featherback.data.batch import IGNORE, Batch
from featherback.data.packing import rows
from featherback.data.teacher_file import TeacherRows, decoded, encoded
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.models.adapter import LoRA
from featherback.models.form import Form
from featherback.runs.config import TrainConfig
from featherback.runs.preparation import prepare_run, resume_run
from featherback.runs.rehearsal import rehearsed_baseline
from featherback.runs.run_directory import RunDirectory
from featherback.runs.teacher import taught
from featherback.runs.trainer import train_run
from featherback.view.reporter import JSONReporter, TextReporter
from featherback.view.show import draw
from tests.support.oracle import reference_model
from tests.support.tiers import some
from tests.support.tiny_chat import N_VOCAB, byte_level_metadata, write_tiny_chat
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

K = 7
Make = Callable[..., RunDirectory]


def chats(count: int = 44) -> list[dict[str, Any]]:
    return [{"prompt": f"What is {i}+{i}?", "completion": f"Sure: {2 * i}" + "!" * (i % 4)} for i in range(count)]


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("student") / "student.gguf")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A larger model of the same tokenizer, whose vocabulary is padded."""
    config = tiny(TINY_LLAMA, vocab_size=N_VOCAB + 5, num_hidden_layers=3, hidden_size=128, intermediate_size=224)
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.tokens"] += [f"[PAD{i}]" for i in range(5)]  # type: ignore[operator]
    metadata["tokenizer.ggml.token_type"] = np.array([1] * 256 + [3] * 3 + [5] * 5, np.int32)
    folder = tmp_path_factory.mktemp("teacher")
    return write_tiny(folder / "teacher.gguf", config, seed=4, metadata=metadata)


@pytest.fixture
def make(student: Path, teacher: Path, tmp_path: Path) -> Make:
    """Prepare a run on `data`, through all stages up to training."""

    def prepared(data: Any = None, name: str = "run", **options: Any) -> RunDirectory:
        config = TrainConfig.of(
            model=str(student), data="records", out=str(tmp_path / name),
            **{"teacher": str(teacher), "teacher_top_k": K, "seq_len": 64, "compute": "fp32", "rank": 4, "steps": 6,
               "learning_rate": 5e-3, "batch_tokens": 200, "threads": 1, "save_every": 3, "keep_checkpoints": True,
               **options},
        )  # fmt: skip
        return prepare_run(config, data or chats(), baseline=rehearsed_baseline)

    return prepared


def trained(run: RunDirectory, *callbacks: Any) -> RunDirectory:
    train_run(run, *callbacks, draw=draw)
    return RunDirectory.open(run.path)


def logits_of(network: Any, batch: Batch) -> torch.Tensor:
    """Return the logits of all rows in float64, each sequence computed separately."""
    parts = [batch.tokens[a:b] for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:])]
    return torch.cat([network(input_ids=torch.from_numpy(t)[None].long()).logits[0] for t in parts]).double()


def apart(run: RunDirectory, teacher: Path, temperature: float) -> float:
    """Return the largest difference of the stored log-probabilities from transformers', after checking the tokens."""
    file, network, worst = taught(run), reference_model(teacher), 0.0
    for row in rows(file, run.config.batching, shuffle=False):
        batch = file.batch(row)
        supervised = np.flatnonzero(batch.targets != IGNORE)
        with torch.no_grad():
            truth = torch.log_softmax(logits_of(network, batch)[supervised] / temperature, -1)
        assert batch.further is not None
        ids = batch.further.ids.reshape(-1, K)
        np.testing.assert_array_equal(batch.further.rows.reshape(-1, K), supervised[:, None].repeat(K, 1))
        found = np.log(batch.further.weights).reshape(-1, K)
        worst = max(worst, abs(found - truth.gather(1, torch.from_numpy(ids).long()).numpy()).max())
        best = truth[:, :N_VOCAB].topk(K, -1).values.numpy()
        worst = max(worst, abs(found - best).max())
    file.teacher.close()
    return worst


@pytest.mark.parametrize(("temperature", "more"), [(1.0, {}), (2.0, {"memory": "least", "batch_tokens": 600})])
def test_the_stored_tokens_are_those_of_transformers(
    make: Make, teacher: Path, temperature: float, more: dict[str, Any]
) -> None:
    run = make(temperature=temperature, **more)
    assert apart(run, teacher, temperature) < 1e-5
    run.release()


def test_shared_prompts_keep_the_order_of_rows(make: Make, teacher: Path) -> None:
    data = [{"prompt": "What is the time in the city of Paris, please?", "completion": f"{i}"} for i in range(40)]
    run = make(data, seq_len=80)
    assert apart(run, teacher, 1.0) < 1e-5
    run.release()


@pytest.mark.parametrize("plant", ["rows shifted", "temperature of the file"])
def test_a_planted_fault_in_the_file_is_found(
    make: Make, teacher: Path, monkeypatch: pytest.MonkeyPatch, plant: str
) -> None:
    if plant == "rows shifted":
        monkeypatch.setattr(teacher_file, "encoded", lambda ids, logp: encoded(np.roll(ids, 1, 0), np.roll(logp, 1, 0)))
    run = make(temperature=2.0)
    assert apart(run, teacher, 2.0 if plant == "rows shifted" else 1.0) > 1e-2
    run.release()


def test_entries_are_as_precise_as_float32() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 1 << 20, (50, 9)).astype(np.int32)
    logp = -rng.uniform(0, 31.9, ids.shape)
    entries = encoded(ids, logp)
    assert entries.shape == (50, 54)
    again, values = decoded(entries)
    np.testing.assert_array_equal(again, ids)
    assert abs(values - logp).max() <= 2.0**-24
    assert decoded(encoded(ids[:1, :2], np.array([[-99.0, 0.0]])))[1].tolist() == [[-32 + 2.0**-23, 0.0]]


def test_a_run_learns_from_a_teacher(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(make(steps=12, temperature=1.5), JSONReporter())
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    steps = [each for each in events if each["event"] == "step"]
    for each in steps:
        assert each["loss"] == pytest.approx(0.5 * each["next_token_loss"] + 0.5 * 1.5**2 * each["divergence"])
    assert steps[-1]["divergence"] < steps[0]["divergence"]
    evaluations = [each for each in events if each["event"] == "evaluation"]
    assert "divergence" not in evaluations[-1]
    assert evaluations[-1]["eval_loss"] < evaluations[0]["eval_loss"]
    assert run.record.teacher.taken.examples == 40
    report = (run.path / "report.html").read_text(encoding="utf-8")
    assert "teacher.gguf" in report


def test_the_text_says_what_the_loss_is_made_of(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(make(steps=2, eval_share=0.0), TextReporter())
    for line in run.metrics():
        assert line["loss"] == pytest.approx(0.5 * line["next_token_loss"] + 0.5 * line["divergence"])
    said = capsys.readouterr().out
    assert "next-token " in said
    assert "from the teacher " in said


@pytest.mark.parametrize(
    "more",
    some(
        [
            {"method": "mezo", "epsilon": 1e-3},
            {"train": "full", "dequantize": True, "master": "fp32", "rank": None, "learning_rate": 1e-3},
            {"batch_size": 2, "batch_tokens": None, "accumulate": 2},
            {"method": "mebp"},
        ],
        2,
    ),
)
def test_other_methods_and_whole_models(make: Make, more: dict[str, Any]) -> None:
    assert trained(make(steps=2, **more)).record.status == "finished"


class Killed(BaseException):
    """Stands for SIGKILL."""


def counted(patch: pytest.MonkeyPatch, most: int | None = None) -> list[int]:
    """Record the rows that are written; after `most` batches, the process dies."""
    save, written = TeacherRows.save, list[int]()

    def saving(self: TeacherRows, sequences: Any, ids: Any, logp: Any) -> None:
        if most is not None and len(written) == most:
            raise Killed
        save(self, sequences, ids, logp)
        written.append(len(ids))

    patch.setattr(TeacherRows, "save", saving)
    return written


def resumed(student: Path, path: Path, **options: Any) -> RunDirectory:
    return resume_run({"model": str(student), "out": str(path), **options}, baseline=rehearsed_baseline)


def test_a_pass_that_is_killed_goes_on(
    make: Make, student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        whole = counted(patch)
        expected = trained(make(name="whole"))
    with monkeypatch.context() as patch:
        counted(patch, 3)
        with pytest.raises(Killed):
            make()
    with monkeypatch.context() as patch:
        written = counted(patch)
        run = trained(resumed(student, tmp_path / "run"))
    assert written == whole[3:]
    files = [(each.tokens / "train.teacher", each.path / "adapter_model.safetensors") for each in (run, expected)]
    for one, other in zip(*files):
        assert one.read_bytes()[4096:] == other.read_bytes()[4096:]


def test_a_damaged_row_is_found_and_computed_again(make: Make, student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(batch_tokens=4000)
    path = run.tokens / "train.teacher"
    content = path.read_bytes()
    path.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    with pytest.raises(FeatherbackError, match=r"train\.teacher is incomplete or damaged\. Delete it and resume"):
        trained(run)
    path.unlink()
    written = counted(monkeypatch)
    run = resumed(student, run.path)
    assert written
    assert path.read_bytes() == content
    assert trained(run).record.status == "finished"


def test_a_finished_pass_is_not_repeated(make: Make, student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(make())
    monkeypatch.setattr(TeacherRows, "save", None)
    resumed(student, run.path, steps=8).release()


def test_a_teacher_must_be_a_whole_model(make: Make, student: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    formats.of_run(Form()).save(LoRA(models.load(student)), adapter, "base")
    with pytest.raises(FeatherbackError, match=r"is an adapter, and a teacher must be a whole model.*--to merged"):
        make(teacher=str(adapter))


def test_another_teacher_is_refused_when_resuming(make: Make, student: Path) -> None:
    run = trained(make())
    with pytest.raises(FeatherbackError, match=r"teacher was .*teacher\.gguf, not .*student\.gguf"):
        resumed(student, run.path, steps=8, teacher=str(student))
    resumed(student, run.path, steps=8, teacher=run.config.teacher).release()


def other_vocabulary(folder: Path) -> Path:
    names = list(byte_level_metadata()["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    names[70], names[71] = names[71], names[70]
    return write_tiny_chat(folder / "other.gguf", {"tokenizer.ggml.tokens": names})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"teacher": "other"}, r"must have the same tokenizer as the student, but token 70 is 'F' in .* and 'G' in "),
        ({"teacher": "nothing.gguf"}, "There is no model nothing.gguf"),
        ({"teacher": None, "teacher_top_k": 64, "distill_weight": 0.3}, "distill-weight only works with a teacher"),
        ({"teacher_top_k": 999}, "teacher-top-k 999 is more than the 259 tokens"),
        ({"objective": "dpo"}, "objective dpo cannot be combined with --teacher"),
        (
            {"train": "full", "rank": None, "dequantize": True, "temperature": 2.0},
            r"temperature is 2\.0, but .* must be 1",
        ),
        ({"distill_weight": 0}, "distill-weight is 0; it must be a positive number"),
    ],
)  # fmt: skip
def test_what_does_not_fit(make: Make, tmp_path: Path, options: dict[str, Any], says: str) -> None:
    if options.get("teacher") == "other":
        options = {"teacher": str(other_vocabulary(tmp_path))}
    with pytest.raises(FeatherbackError, match=says):
        make(**options)
    assert not (tmp_path / "run").exists()


def test_a_budget_that_is_too_small_for_the_teacher(make: Make, tmp_path: Path) -> None:
    config = tiny(TINY_LLAMA, vocab_size=N_VOCAB, num_hidden_layers=1, hidden_size=1024, intermediate_size=4096)
    large = str(write_tiny(tmp_path / "large.gguf", config, metadata=byte_level_metadata()))
    run = make(steps=1, teacher=large)
    needed, own = run.record.teacher.plan.least_mb, run.record.plan.least_mb
    run.release()
    assert needed > own + 5
    with pytest.raises(FeatherbackError, match=r"The teacher's pass does not fit in .* need at least"):
        make(name="other", memory=(needed - 3) * 10**6, teacher=large)
    assert not (tmp_path / "other").exists()
