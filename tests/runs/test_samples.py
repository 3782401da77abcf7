"""Answers of the model before and after a run, to the run's examples, within its memory budget."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import featherback as fb
from featherback.data.tokenizers.loader import tokenizer_bytes
from featherback.engine import kernels
from featherback.engine.budget import BudgetError
from featherback.errors import FeatherbackError
from featherback.infer import needs
from featherback.infer.layout import layouts
from featherback.runs import decoders, samples
from featherback.runs.callback import Callback
from featherback.runs.decoders import Within
from featherback.runs.events import Note, Sample
from featherback.runs.outcome import chat_command
from featherback.runs.record import RunRecord
from featherback.runs.run_directory import RunDirectory
from featherback.runs.samples import ANSWER, BEGINNING, sample
from featherback.view.reporter import TextReporter
from tests.runs.conftest import sequences
from tests.support.records import record_of
from tests.support.tiny_chat import write_messages, write_tiny_chat

OPTIONS: dict[str, Any] = {"steps": 4, "seq_len": 64, "lr": 0.05, "compute": "fp32", "progress": False}


class Heard(Callback):
    """Collects the samples and notes of a run."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.notes: list[Note] = []

    def sample(self, event: Sample) -> None:
        self.samples.append(event)

    def note(self, event: Note) -> None:
        self.notes.append(event)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> fb.Model:
    return fb.load(write_tiny_chat(tmp_path_factory.mktemp("model") / "m.gguf"))


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    return write_messages(tmp_path / "chats.jsonl")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_messages(tmp_path / "other.jsonl", 3)


def _said(model: fb.Model, sample: Sample, adapter: Any = None) -> str:
    """Return the model's answer to a sample's prompt."""
    question = sample.prompt.split("user\n")[1].split("<|im_end|>")[0]
    return model.generate(question, max_tokens=ANSWER, adapter=adapter, compute="fp32")


def test_the_held_out_examples_are_answered_by_both(model: fb.Model, chats: Path, other: Path, tmp_path: Path) -> None:
    heard = Heard()
    run = fb.train(model, chats, out=tmp_path / "run", eval_data=other, callbacks=[heard], **OPTIONS)
    assert [(each.prompt, each.expected) for each in heard.samples] == [
        (f"<|im_start|>user\nWhat is {i} plus {i}?<|im_end|>\n<|im_start|>assistant\n", f"It is {2 * i}{dots}")
        for i, dots in enumerate(["", "."])
    ]
    for each in heard.samples:
        assert each.before == _said(model, each)
        assert each.after == _said(model, each, run)
        assert each.before != each.after
    assert RunDirectory.open(run.path).record.samples == heard.samples
    report = (run.path / "report.html").read_text()
    assert report.count("<td>expected</td>") == 2
    assert "What is 1 plus 1?" in report


def test_a_run_that_goes_on_from_an_adapter_compares_with_that(model: fb.Model, chats: Path, tmp_path: Path) -> None:
    first = fb.train(model, chats, out=tmp_path / "first", **OPTIONS)
    heard = Heard()
    fb.train(model, chats, out=tmp_path / "second", start=first.path, callbacks=[heard], samples=1, **OPTIONS)
    (each,) = heard.samples
    assert each.before == _said(model, each, first)


def test_a_text_is_continued(model: fb.Model, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog, and then it sleeps until noon. " * 3)
    heard = Heard()
    fb.train(model, text, out=tmp_path / "run", callbacks=[heard], samples=1, **OPTIONS)
    (each,) = heard.samples
    assert len(each.prompt) == BEGINNING
    assert len(each.expected) == 64 - BEGINNING
    assert each.prompt + each.expected in text.read_text()


def test_a_whole_model_answers_as_it_was_and_as_it_is(model: fb.Model, chats: Path, tmp_path: Path) -> None:
    heard = Heard()
    run = fb.train(
        model,
        chats,
        out=tmp_path / "run",
        callbacks=[heard],
        samples=1,
        train="full",
        dequantize=True,
        **OPTIONS | {"lr": 0.01},
    )
    (each,) = heard.samples
    assert (each.before, each.after) == (_said(model, each), _said(run.trained_model, each))
    assert each.before != each.after


def test_answers_do_not_exceed_the_budget(model: fb.Model, chats: Path, tmp_path: Path) -> None:
    """Nothing is taken that was not asked for: in a process with little to spare, the smallest decoder answers."""
    run = fb.train(model, chats, out=tmp_path / "run", samples=0, **OPTIONS)
    with pytest.raises(
        BudgetError, match=r"^The tokenizer of the answers does not fit in 1MB: these options need at least"
    ) as refused:
        sample(run.directory, 1, within=Within(10**6))
    assert refused.value.needed > kernels.memory_now()[1] - 10**6
    assert not run.directory.record.samples
    peaks = []
    least = kernels.memory_now()[1] + tokenizer_bytes(model.path) + 10 * 10**6
    within = Within(least, run.directory.plan.weights, run.path)
    assert len(sample(run.directory, 1, None, within, lambda: peaks.append(kernels.memory_now()[1]))) == 1
    assert peaks
    assert max(peaks) <= least


@pytest.mark.full("infer/test_decoder.py compares all layouts")
def test_answers_are_the_same_however_little_memory_there_is(
    model: fb.Model, chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fb.train(model, chats, out=tmp_path / "run", **OPTIONS)
    expected = run.directory.record.samples
    for layout in [*layouts(), *layouts("streamed")]:
        monkeypatch.setattr(decoders, "fitting", lambda *_, layout=layout: layout)
        assert sample(run.directory, 2) == expected, layout


def test_a_run_whose_answers_do_not_fit_says_how_to_get_them(
    model: fb.Model, chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And keeps none of an earlier end of it."""
    out = tmp_path / "a run"
    fb.train(model, chats, out=out, keep_checkpoints=True, **OPTIONS)
    monkeypatch.setattr(needs, "CODE", 10**12)
    heard = Heard()
    run = fb.train(model, chats, out=out, resume=True, callbacks=[heard], **OPTIONS | {"steps": 6})
    assert run.status == "finished"
    (note,) = (each.text for each in heard.notes)
    assert "skipped: The smallest decoder does not fit in" in note
    assert f"To make them without a memory budget: featherback report '{out}' --samples 2" in note
    assert run.directory.record.samples == []
    assert "Answers before" not in (run.path / "report.html").read_text()


def test_a_signal_while_answering_ends_the_answers_and_not_the_run(
    model: fb.Model, chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(*arguments: Any) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return answer(*arguments)

    answer = samples._answer
    monkeypatch.setattr(samples, "_answer", signalled)
    heard = Heard()
    run = fb.train(model, chats, out=tmp_path / "run", callbacks=[heard], **OPTIONS)
    assert run.status == "finished"
    assert (run.path / "report.html").exists()
    assert heard.samples == []
    (note,) = (each.text for each in heard.notes)
    assert "the answers before and after training were skipped; to make them: featherback report" in note


def test_a_run_of_which_nothing_can_be_asked_ends_well(model: fb.Model, tmp_path: Path) -> None:
    """What is trained comes first, and nothing before it."""
    heard = Heard()
    examples = [(list(range(8)), [0, 1] + 6 * [-100])] * 2
    run = fb.train(model, examples, out=tmp_path / "run", callbacks=[heard], **OPTIONS)
    assert run.status == "finished"
    assert heard.samples == []


def test_a_model_that_is_gone_is_said(chats: Path, tmp_path: Path) -> None:
    gone = write_tiny_chat(tmp_path / "gone.gguf")
    run = fb.train(fb.load(gone), chats, out=tmp_path / "run", samples=0, **OPTIONS)
    gone.unlink()
    with pytest.raises(FeatherbackError, match=r"gone\.gguf"):
        sample(run.directory, 1)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (record_of(), "chat m --adapter r"),
        (record_of("text"), "generate m --adapter r "),
        (record_of("prompt", quantize="q4_0"), "chat m --quantize q4_0 --adapter r"),
        (record_of(train="full"), "chat r"),
    ],
)
def test_what_is_typed_next(record: RunRecord, words: str) -> None:
    assert " ".join(chat_command(record, "r")).startswith(f"featherback {words}")


def test_a_model_without_a_vocabulary_is_not_asked(tiny_path: Path, tmp_path: Path) -> None:
    heard = Heard()
    options = OPTIONS | {"seq_len": 16}
    run = fb.train(fb.load(tiny_path), sequences(), out=tmp_path / "run", callbacks=[heard], **options)
    assert (heard.samples, heard.notes) == ([], [])
    assert run.directory.record.samples == []


def test_how_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from featherback.runs.events import End
    from tests.support.records import SUMMARY

    reporter = TextReporter()
    reporter.sample(Sample("Q", "It is 2.", "No\n\tidea " + 300 * "x", "It is\x1b[2J 2"))
    reporter.end(End("finished", SUMMARY))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == "expected  It is 2."
    assert lines[-2] == "before    No idea " + 191 * "x" + "\u2026"
    assert lines[-1] == "after     It is\\u001b[2J 2"
