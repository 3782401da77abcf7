"""A run that ends worse than it began has its own exit status, and prints which command to try instead."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import featherback as fb
from featherback.runs.outcome import is_worse, repetition
from featherback.runs.summary import Change
from featherback.worker import WORSE
from tests.cli.conftest import Command, Outcome
from tests.support.records import SUMMARY

ABSURD = 1000.0
OPTIONS = ("--seq-len", 96, "--samples", 0, "--compute", "fp32", "--epochs", 4)


@pytest.fixture(scope="module")
def good(chat_model: Path, messages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that has learned something, because a random model can hardly become worse."""
    out = tmp_path_factory.mktemp("runs") / "good"
    options: dict[str, Any] = {"seq_len": 96, "samples": 0, "progress": False, "compute": "fp32"}
    fb.train(chat_model, messages, out, eval_data=messages, lr=3e-3, rank=4, steps=8, **options)
    return out


def _train(command: Command, model: Path, messages: Path, good: Path, out: Path, *flags: str) -> Outcome:
    data = ("--data", messages, "--eval-data", messages, "--from", good, "--out", out)
    return command("train", model, *data, "--lr", ABSURD, *OPTIONS, *flags)


def test_the_last_line_is_the_verdict_and_its_command_works(
    command: Command, chat_model: Path, messages: Path, good: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    done = _train(command, chat_model, messages, good, out)
    assert done.code == WORSE == 3, done.err
    lines = done.out.splitlines()
    assert lines[-1].startswith("worse than before training: the held-out loss was ")
    assert "do not use this adapter. Train again: featherback train --config" in lines[-1]
    assert "chat" not in lines[-1]
    assert not any(line.startswith("next:") for line in lines)
    words = shlex.split(lines[-1].partition("Train again: ")[2])
    assert float(words[words.index("--lr") + 1]) < ABSURD / 100  # no more than the default

    inspected = command("inspect", out).out.split()
    assert " ".join(words) in " ".join(inspected)
    assert "chat" not in inspected

    again = command(*words[1:])
    assert again.code == 0, again.out + again.err
    assert again.out.splitlines()[-1].startswith("next: featherback chat")


@pytest.mark.full("whole commands; test_the_last_line_is_the_verdict_and_its_command_works stands for them")
def test_json_has_it_in_the_event_of_the_end(
    command: Command, chat_model: Path, messages: Path, good: Path, tmp_path: Path
) -> None:
    done = _train(command, chat_model, messages, good, tmp_path / "run", "--json")
    assert done.code == WORSE
    end = json.loads(done.out.splitlines()[-1])
    assert (end["event"], end["summary"]["worse"]) == ("end", True)
    assert end["summary"]["recommended"]["lr"] < ABSURD / 100
    assert done.err.splitlines()[-1].startswith("worse than before training: ")


def test_python_warns_and_the_run_knows(chat_model: Path, messages: Path, good: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"seq_len": 96, "samples": 0, "progress": False, "compute": "fp32"}
    options["eval_data"] = messages
    with pytest.warns(UserWarning, match="worse than before training: .* Train again with lr=") as warned:
        run = fb.train(chat_model, messages, tmp_path / "run", start=good, lr=ABSURD, **options)
    assert warned[0].filename == __file__
    assert run.worse
    better = fb.train(chat_model, messages, tmp_path / "again", start=good, **run.summary.recommended, **options)
    assert not better.worse
    assert better.summary.worse is False


@pytest.mark.full("whole commands; test_the_last_line_is_the_verdict_and_its_command_works stands for them")
def test_without_held_out_data_a_training_loss_that_rises_is_worse(
    command: Command, chat_model: Path, messages: Path, good: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    data = ("--data", messages, "--from", good, "--out", out, "--lr", ABSURD, "--steps", 4, "--seq-len", 96)
    done = command("train", chat_model, *data, "--eval-share", 0, "--samples", 0, "--compute", "fp32")
    assert done.code == WORSE, done.out + done.err
    last = done.out.splitlines()[-1]
    assert last.startswith("worse than before training: the training loss rose from ")
    assert "do not use this adapter. Train again: featherback train --config" in last
    assert "the training loss rose from" in command("inspect", out).out
    assert "the training loss rose from" in (out / "report.html").read_text()
    exported = command("export", out, "--to", "peft").out
    assert f"note: {out} is worse than before training: the training loss rose from" in exported

    resumed = command("train", "--out", out, "--resume")  # with the model on its record
    assert resumed.code == WORSE, resumed.err
    assert f"note: the model is {chat_model}, as recorded in {out}" in resumed.err


def test_a_training_loss_must_rise_clearly() -> None:
    without = replace(SUMMARY, first_eval_loss=None, final_eval_loss=None, best_step=None, best_eval_loss=None)
    assert not is_worse(replace(without, early_loss=1.0, late_loss=1.4))
    assert is_worse(replace(without, early_loss=1.0, late_loss=1.6))
    assert not is_worse(replace(without, early_loss=4.0, late_loss=4.9))
    assert not is_worse(replace(SUMMARY, early_loss=1.0, late_loss=3.0))
    assert not is_worse(None)


@pytest.mark.parametrize("part", ["held_out", "training"])
@pytest.mark.parametrize(
    ("first", "kept", "worse"),
    [
        ({"chosen_logp": -3.8, "rejected_logp": -1.83}, {"chosen_logp": -3.77, "rejected_logp": -8.58}, True),
        ({"chosen_logp": -3.8, "rejected_logp": -1.83}, {"chosen_logp": -2.52, "rejected_logp": -2.2}, False),
        ({"chosen_logp": -1.0, "rejected_logp": -1.0}, {"chosen_logp": -1.6, "rejected_logp": -2.0}, True),
        ({"chosen_logp": -1.0, "rejected_logp": -1.0}, {"chosen_logp": -1.4, "rejected_logp": -2.4}, False),
        ({"chosen_logp": -1.0}, {}, False),
    ],
)
def test_answers_that_become_unlikely_are_worse(
    part: str, first: dict[str, float], kept: dict[str, float], worse: bool
) -> None:
    """Even if the loss falls and every pair is told apart. The first two are measured: rates of 2e-3 and 2e-4."""
    assert is_worse(replace(SUMMARY, **{part: Change(first, kept)})) == worse


@pytest.mark.parametrize(
    ("before", "after", "worse"), [(0.0, 0.9, True), (0.0, 0.4, False), (0.8, 0.95, False), (0.4, 0.7, True)]
)
def test_answers_that_begin_to_repeat_themselves_are_worse(before: float, after: float, worse: bool) -> None:
    assert is_worse(replace(SUMMARY, repetition_before=before, repetition=after)) == worse


@pytest.mark.parametrize(
    ("repetitions", "worse"), [((0.0, 0.12), False), ((0.0, 0.26), True), ((0.7, 0.8), False), (None, True)]
)
def test_rejected_answers_may_become_unlikely_if_the_model_still_writes(
    repetitions: tuple[float, float] | None, worse: bool
) -> None:
    """Measured: the first two are in docs/decisions/preferences.md (dpo on brief, simpo on tone, both 0.1)."""
    ends = Change({"chosen_logp": -3.1, "rejected_logp": -2.6}, {"chosen_logp": -2.7, "rejected_logp": -6.3})
    before, after = repetitions or (None, None)
    assert is_worse(replace(SUMMARY, held_out=ends, repetition_before=before, repetition=after)) == worse


def test_repetition() -> None:
    assert repetition([]) == repetition(["Yes.", "The quick brown fox jumps over the lazy dog and sleeps"]) == 0
    assert repetition(["Hej! " * 30]) > 0.9
    assert 0.4 < repetition(["Hej! " * 30, "The quick brown fox jumps over the lazy dog and sleeps"]) < 0.6


def test_a_run_on_preferences_that_destroys_the_model_says_so(chat_model: Path, good: Path, tmp_path: Path) -> None:
    """All pairs are told apart, and the loss falls; the answers of the first data set have become impossible."""
    pairs = [{"prompt": f"What is {i}?", "chosen": f"Sure: {i}", "rejected": f"No {i}!"} for i in range(48)]
    options: dict[str, Any] = {"objective": "dpo", "seq_len": 96, "samples": 0, "progress": False, "epochs": 6}
    with pytest.warns(UserWarning, match="log-probability of the (chosen|rejected) answers fell from .* per token"):
        run = fb.train(chat_model, pairs, tmp_path / "run", start=good, lr=0.3, **options)
    assert run.summary.best_eval_loss < run.summary.first_eval_loss
    gentle = fb.train(chat_model, pairs, tmp_path / "gentle", start=good, lr=2e-4, **options)
    assert not gentle.worse
