"""Runs on preferences: their data, the reference pass, what is shown, and resuming."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import featherback as fb
from featherback import models
from featherback.data.logp_file import LogpFile, key_of
from featherback.data.pairs import MarkedFile, answers_in
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.runs import reference
from featherback.runs.config import TrainConfig
from featherback.runs.passes import missing_passes
from featherback.runs.preparation import prepare_run, resume_run
from featherback.runs.reference import reference_file
from featherback.runs.rehearsal import rehearsed_baseline
from featherback.runs.run_directory import RunDirectory
from featherback.runs.trainer import train_run
from featherback.view.reporter import JSONReporter, TextReporter
from featherback.view.show import draw
from tests.support import tiers
from tests.support.oracle import reference_model, with_adapter
from tests.support.tiny_chat import write_tiny_chat

KEYS = {"chosen_reward", "rejected_reward", "margin", "accuracy", "chosen_logp", "rejected_logp"}
Make = Callable[..., RunDirectory]


def pairs(count: int = 44) -> list[dict[str, Any]]:
    """Questions with a polite and a curt answer."""
    return [
        {"prompt": f"What is {i}+{i}?", "chosen": f"Sure: {2 * i}", "rejected": f"No {2 * i}!"} for i in range(count)
    ]


def labelled(count: int = 44) -> list[dict[str, Any]]:
    return [
        {"prompt": each["prompt"], "completion": each["rejected" if i % 2 else "chosen"], "label": not i % 2}
        for i, each in enumerate(pairs(count))
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("model") / "chat.gguf")


@pytest.fixture
def make(model: Path, tmp_path: Path) -> Make:
    """Prepare a run on `data`, through all stages up to training."""

    def prepared(data: list[dict[str, Any]] | None = None, name: str = "run", **options: Any) -> RunDirectory:
        config = TrainConfig.of(
            model=str(model), data="records", out=str(tmp_path / name),
            **{"objective": "dpo", "seq_len": 64, "compute": "fp32", "rank": 4, "steps": 6, "learning_rate": 5e-3,
               "batch_size": 8, "threads": 1, "save_every": 3, "keep_checkpoints": True, **options},
        )  # fmt: skip
        return prepare_run(config, data or pairs(), baseline=rehearsed_baseline)

    return prepared


def trained(run: RunDirectory, *callbacks: Any) -> RunDirectory:
    train_run(run, *callbacks, draw=draw)
    return RunDirectory.open(run.path)


def tokens_of(run: RunDirectory, name: str = "train") -> MarkedFile:
    return MarkedFile(run.tokens / f"{name}.tokens")


def known(run: RunDirectory, name: str = "train") -> np.ndarray:
    tokens = tokens_of(run, name)
    return reference_file(run, name, tokens).read()


def truth(model: Path, run: RunDirectory, adapter: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
    """Return the log-probability of each answer by transformers and PEFT."""
    twin, tokens = reference_model(model), tokens_of(run)
    network = twin if adapter is None else with_adapter(twin, dict(adapter), 16)
    found = []
    for i in range(len(tokens)):
        for answer in answers_in(tokens.seq(i)[0], tokens.marks(i)):
            with torch.no_grad():
                logits = network(input_ids=torch.from_numpy(answer.tokens)[None].long()).logits[0, :-1].double()
            logp = torch.log_softmax(logits, -1).numpy()
            wanted = answer.supervised[1:]
            found.append(logp[np.flatnonzero(wanted), answer.tokens[1:][wanted]].sum())
    return np.array(found).reshape(-1, 2)


def test_a_reference_that_is_complete_is_not_computed_again(make: Make) -> None:
    run = make()
    assert missing_passes(run) == ()
    file = run.tokens / "train.logps"
    file.write_bytes(file.read_bytes()[:-100])
    assert missing_passes(run) == ("reference",)
    run.release()


def test_a_run_learns_to_prefer(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Before training the policy is the reference: both rewards are 0, and each pair is a tie."""
    run = trained(make(), JSONReporter())
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    steps = [each for each in events if each["event"] == "step"]
    evaluations = [each for each in events if each["event"] == "evaluation"]
    assert all(each.keys() >= KEYS for each in (*steps, *evaluations))
    before, after = evaluations[0], evaluations[-1]
    assert (before["accuracy"], before["margin"]) == (0.5, 0.0)
    assert before["eval_loss"] == pytest.approx(math.log(2))
    assert after["accuracy"] > 0.9
    assert after["margin"] > 0.1
    assert after["margin"] == pytest.approx(after["chosen_reward"] - after["rejected_reward"])
    assert after["eval_loss"] < before["eval_loss"]
    assert [line["accuracy"] for line in run.metrics()] == [each["accuracy"] for each in steps]
    assert run.record.evaluations[-1].measures.keys() >= KEYS
    assert run.record.summary.held_out.first["accuracy"] == 0.5
    report = (run.path / "report.html").read_text(encoding="utf-8")
    assert "Held-out accuracy" in report
    assert "Rewards" in report
    assert "nats per token" not in report


def test_the_text_says_what_changed(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    trained(make(), TextReporter())
    said = capsys.readouterr().out
    assert "step 0/6  held-out loss 0.6931  accuracy 50 %  margin 0.000  rewards chosen +0.000, rejected +0.000" in said
    assert "held-out accuracy 50 % -> " in said


def test_the_reference_is_the_model_without_an_adapter(make: Make, model: Path) -> None:
    run = make()
    np.testing.assert_allclose(known(run), truth(model, run), rtol=1e-5)
    run.release()


def test_log_probabilities_in_the_data_are_the_reference(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed. Held-out examples keep theirs."""
    monkeypatch.setattr(MarkedFile, "batch", None)
    data = [
        {**each, "ref_chosen_logps": -i - 0.5, "ref_rejected_logps": str(-i - 0.25)} for i, each in enumerate(pairs())
    ]
    run = make(data)
    for name in ("train", "eval"):
        values = known(run, name)
        tokens = tokens_of(run, name)
        for i, (chosen, rejected) in enumerate(values):
            number = int(-chosen)
            assert (chosen, rejected) == (-number - 0.5, -number - 0.25)
            assert f"is {number}+{number}?" in bytes(t for t in tokens.seq(i)[0].tolist() if t < 256).decode()
    run.release()


def test_given_log_probabilities_of_some_examples_are_not_used(make: Make, model: Path) -> None:
    data = [{**each, "ref_chosen_logps": -1, "ref_rejected_logps": -2} for each in pairs()]
    del data[7]["ref_chosen_logps"]
    run = make(data)
    np.testing.assert_allclose(known(run), truth(model, run), rtol=1e-5)
    run.release()
    data[7]["ref_chosen_logps"] = 0.5
    with pytest.raises(FeatherbackError, match=r'"ref_chosen_logps" is 0\.5; it must be a log-probability'):
        make(data, name="other")


def continued(make: Make, model: Path) -> tuple[RunDirectory, dict[str, np.ndarray]]:
    """Return a run that continues an adapter, and the values of that adapter."""
    first = trained(make(name="first", objective="orpo", learning_rate=2e-2))
    adapter = formats.load(models.load(model), first.path)
    return make(start=str(first.path), rank=None), {name: each.copy() for name, each in adapter.state().items()}


def test_the_reference_is_the_adapter_that_is_continued(make: Make, model: Path) -> None:
    run, state = continued(make, model)
    expected = truth(model, run, state)
    np.testing.assert_allclose(known(run), expected, rtol=1e-5)
    assert abs(expected - truth(model, run)).max() > 1
    run = trained(run)
    assert run.record.evaluations[0].measures["margin"] == 0


def test_a_fault_is_found_the_reference_without_the_adapter_that_is_continued(
    make: Make, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "_first_adapter", lambda run, model: None)
    run, state = continued(make, model)
    assert abs(known(run) - truth(model, run, state)).max() > 1
    run.release()


@pytest.mark.full("others of its kind stand for it")
def test_objectives_without_a_reference_have_no_such_stage(make: Make) -> None:
    for objective in ("orpo", "simpo"):
        run = make(objective=objective, name=objective)
        assert not list(run.tokens.glob("*.logps"))
        assert trained(run).record.evaluations[-1].measures["accuracy"] > 0.9


@pytest.mark.parametrize("objective", tiers.some(["ipo", "robust_dpo"], 1))
def test_other_objectives_on_pairs(make: Make, objective: str) -> None:
    run = trained(make(objective=objective))
    before, *_, after = run.record.evaluations
    assert after.measures["accuracy"] > before.measures["accuracy"] == 0.5


def test_labelled_answers(make: Make) -> None:
    run = trained(make(labelled(), objective="kto", steps=10, eval_share=0.2))
    before, *_, after = run.record.evaluations
    assert before.loss == pytest.approx(0.5)
    assert after.measures["chosen_reward"] > after.measures["rejected_reward"]
    assert "accuracy" not in after.measures


def test_pairs_as_labelled_answers(make: Make) -> None:
    """Each pair is two examples. The answer to the wrong prompt is that of another pair."""
    run = make(objective="kto", eval_share=0.0)
    tokens = tokens_of(run)
    assert len(tokens) == 2 * len(pairs())
    for i in range(len(tokens)):
        own, other = answers_in(tokens.seq(i)[0], tokens.marks(i))
        assert own.part == 1 + i % 2 or i >= len(tokens) - 2
        assert (own.prompt == other.prompt).all()
        assert own.tokens.tolist() != other.tokens.tolist()
    run.release()


@pytest.mark.parametrize("train", tiers.some(["full", "lora"], 1))
def test_whole_models_and_methods_without_a_backward_pass(make: Make, train: str) -> None:
    more: dict[str, Any] = {"method": "mezo", "epsilon": 1e-3}
    if train == "full":
        more = {"train": "full", "dequantize": True, "master": "fp32", "rank": None, "learning_rate": 1e-3}
    run = trained(make(steps=3, **more))
    assert run.record.evaluations[0].measures["accuracy"] == 0.5
    assert run.record.status == "finished"


class Killed(BaseException):
    """Stands for SIGKILL."""


def killed_after(patch: pytest.MonkeyPatch, count: int) -> None:
    """End the reference pass when it has written so many batches."""
    append, calls = LogpFile.append, 0

    def dying(self: LogpFile, first: int, values: np.ndarray) -> None:
        nonlocal calls
        if calls == count:
            raise Killed
        calls += 1
        append(self, first, values)

    patch.setattr(LogpFile, "append", dying)


def resumed(model: Path, path: Path) -> RunDirectory:
    return resume_run({"model": str(model), "out": str(path)}, baseline=rehearsed_baseline)


def test_a_reference_pass_that_is_killed_goes_on(
    make: Make, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(make(name="whole"))
    expected = known(whole)
    with monkeypatch.context() as patch:
        killed_after(patch, 3)
        with pytest.raises(Killed):
            make()
    run = RunDirectory.open(tmp_path / "run")
    assert len(known(run)) == 24
    written: list[int] = []
    append = LogpFile.append

    def counting(self: LogpFile, first: int, values: np.ndarray) -> None:
        written.append(len(values))
        append(self, first, values)

    monkeypatch.setattr(LogpFile, "append", counting)
    run = trained(resumed(model, run.path))
    assert sum(written) == len(expected) - 24 + len(known(run, "eval"))
    np.testing.assert_array_equal(known(run), expected)
    adapters = [(each.path / "adapter_model.safetensors").read_bytes() for each in (run, whole)]
    assert adapters[0] == adapters[1]


@pytest.mark.full("others of its kind stand for it")
def test_a_run_resumed_later_computes_nothing_again(make: Make, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(make())
    monkeypatch.setattr(LogpFile, "append", None)
    resume_run({"model": str(model), "out": str(run.path), "steps": 8}, baseline=rehearsed_baseline).release()


def test_training_without_the_reference_is_refused(make: Make) -> None:
    run = make()
    (run.tokens / "train.logps").unlink()
    with pytest.raises(FeatherbackError, match="lacks the reference log-probabilities of"):
        train_run(run)


KEY, VALUES = key_of(a=1), np.arange(-8.0, 0).reshape(4, 2)


@pytest.fixture
def logps(tmp_path: Path) -> LogpFile:
    file = LogpFile(tmp_path / "x.logps", KEY, 4)
    with file as out:
        out.append(0, VALUES[:2])
        out.append(2, VALUES[2:])
    return file


def test_log_probabilities_are_read_back(logps: LogpFile) -> None:
    np.testing.assert_array_equal(logps.read_all(), VALUES)


@pytest.mark.parametrize("size", range(64, 64 + 2 * 56, 13))
def test_a_file_that_ends_early_goes_on_behind_its_last_good_block(logps: LogpFile, size: int) -> None:
    content = logps.path.read_bytes()
    logps.path.write_bytes(content[:size])
    done = (size - 64) // 56 * 2
    np.testing.assert_array_equal(logps.read(), VALUES[:done])
    with pytest.raises(FeatherbackError, match=f"of {4 - done} of 4 examples"):
        logps.read_all()
    with logps as out:
        for first in range(done, 4, 2):
            out.append(first, VALUES[first : first + 2])
    assert logps.path.read_bytes() == content


@pytest.mark.parametrize("at", range(0, 64 + 2 * 56, 5))
def test_a_fault_in_any_byte_is_found(logps: LogpFile, at: int) -> None:
    """The padding behind a header or a checksum holds nothing."""
    content = bytearray(logps.path.read_bytes())
    content[at] ^= 4
    logps.path.write_bytes(content)
    assert len(logps.read()) == (0 if at < 64 + 56 else 2)


def test_values_with_another_key_are_not_read(logps: LogpFile) -> None:
    other = LogpFile(logps.path, key_of(a=2), 4)
    assert not len(other.read())
    with other as out:
        out.append(0, VALUES)
    assert not len(logps.read())


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        ([{"prompt": "a", "completion": "b"}] * 2, {}, 'expected a pair of answers, "chosen" and "rejected"'),
        (labelled(2), {}, "To train on labelled answers, use .*objective kto"),
        ([{"prompt": "a", "completion": "b"}] * 2, {"objective": "kto"}, '"label" is missing'),
        ([{"prompt": "a", "completion": "b", "label": "maybe"}] * 2, {"objective": "kto"}, "must be true or false"),
        (labelled(1), {"objective": "kto"}, "needs at least two"),
        (pairs(2), {"objective": "next_token"}, "this is a preference pair.*objective dpo"),
        (pairs(2), {"seq_len": 16}, "are longer than 16 tokens"),
        ([[1, 2, 3]], {}, "token lists cannot hold them"),
        (pairs(2), {"batch_size": None, "batch_tokens": 100}, "must hold 2 answers: use at least .*128"),
    ],
)
def test_data_of_the_wrong_form(make: Make, data: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(FeatherbackError, match=says):
        make(data, **options)


def test_equal_answers_and_long_ones(make: Make) -> None:
    data = [*pairs(), {"prompt": "a", "chosen": "b", "rejected": "b"}]
    data.append({"prompt": "a" * 30, "chosen": "b" * 90, "rejected": "c"})
    run = make(data, cut=True, eval_share=0.0)
    report = run.record.data["train"]
    assert (report.equal, report.truncated, report.sequences) == (1, 1, 45)
    assert tokens_of(run).longest == 64
    run.release()


def test_the_length_follows_the_longest_answer(make: Make) -> None:
    """It counts a prompt with one answer. A batch has room for both."""
    run = make(seq_len=None, batch_size=None)
    longest = tokens_of(run).longest
    assert longest < tokens_of(run).max_length <= 2 * longest
    assert (run.config.sequence, run.config.batching.full) == (256, 512)
    run.release()


def test_without_prompts(make: Make) -> None:
    """The prompt is what both answers begin with, in text and in messages."""
    text = [{k: (each["prompt"] + " " if k != "prompt" else "") + each[k] for k in each} for each in pairs()]
    for each in text:
        del each["prompt"]
    chats = [
        {
            k: [{"role": "user", "content": each["prompt"]}, {"role": "assistant", "content": each[k]}]
            for k in ("chosen", "rejected")
        }
        for each in pairs()
    ]
    plain = [{**each, "chosen": f" {each['chosen']}", "rejected": f" {each['rejected']}"} for each in pairs()]
    for name, data, same in (("text", text, plain), ("chats", chats, pairs())):
        runs = [make(each, name=f"{name}{i}", eval_share=0.0) for i, each in enumerate((data, same))]
        files = [tokens_of(run) for run in runs]
        for i in range(len(files[0])):
            np.testing.assert_array_equal(files[0].seq(i)[0], files[1].seq(i)[0])
            np.testing.assert_array_equal(files[0].marks(i), files[1].marks(i))
        for run in runs:
            run.release()


def test_data_with_only_one_label_are_noted(make: Make) -> None:
    def notes(name: str, data: list[dict[str, Any]]) -> str:
        run = make(data, name, objective="kto", eval_share=0.0)
        run.release()
        return " ".join(run.record.data["train"].notes())

    wanted = notes("wanted", [{**each, "label": True} for each in labelled(8)])
    assert "All 8 examples have the label true. Training only makes their answers more likely; add examples" in wanted
    unwanted = notes("unwanted", [{**each, "label": False} for each in labelled(8)])
    assert "have the label false. Training only makes their answers less likely" in unwanted
    assert "have the label" not in notes("both", labelled(8)) + notes("pairs", pairs(8))


PREFERENCES = ("dpo", "ipo", "kto", "orpo", "robust_dpo", "simpo")


@pytest.mark.parametrize("objective", tiers.some(sorted(PREFERENCES, key=lambda name: name != "kto"), 2))
def test_an_evaluation_measures_what_the_run_measured(make: Make, model: Path, tmp_path: Path, objective: str) -> None:
    """With all defaults of the objective, on the same held-out pairs, with the same reference."""
    rows = labelled() if objective == "kto" else pairs()
    held = rows[:10]
    file = tmp_path / "held.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in held))
    run = trained(make(rows[10:], objective=objective, eval_data=str(file), keep="last"))
    last = run.record.evaluations[-1]
    named = {name: last.measures[name] for name in KEYS & last.measures.keys()}
    for data in (str(file), held):
        found = fb.evaluate(str(model), data, adapter=str(run.path), objective=objective, compute="fp32")  # type: ignore[arg-type]
        if objective not in ("kto", "orpo"):  # whose loss also depends on which examples share a batch
            assert found.loss == pytest.approx(last.loss, rel=1e-5)
        assert found.measures == pytest.approx(named, rel=1e-4, abs=1e-6)
        assert found.tokens == len(held)


def test_the_reference_of_an_evaluation_is_the_adapter_that_was_continued(make: Make, model: Path) -> None:
    first = trained(make(name="first"))
    run = trained(make(name="second", start=str(first.path)))
    held = pairs(8)
    options: dict[str, Any] = {"objective": "dpo", "compute": "fp32"}
    other, whole = (fb.evaluate(str(model), held, adapter=str(each.path), **options) for each in (first, run))
    (run.path / "start").rename(run.path / "elsewhere")
    against_model = fb.evaluate(str(model), held, adapter=str(run.path), **options)
    for name in ("chosen_reward", "rejected_reward"):
        continued = against_model.measures[name] - other.measures[name]
        assert whole.measures[name] == pytest.approx(continued, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ("next_token", "this is a preference pair .* add --objective dpo"),
        ("classify", "--objective classify needs an adapter with a trained head: add --adapter"),
        ("kto", '"label"|expected|pair'),
    ],
)
def test_pairs_are_evaluated_only_as_pairs(model: Path, objective: str, said: str) -> None:
    if objective == "kto":  # which takes pairs too: each becomes two answers
        assert fb.evaluate(str(model), pairs(4), objective=objective).tokens == 8
        return
    with pytest.raises(FeatherbackError, match=said):
        fb.evaluate(str(model), pairs(4), objective=objective)
