"""A mistake in the options or the paths is found before anything is measured or planned."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

import featherback as fb
from featherback import api
from featherback.engine.host.machine import Machine
from featherback.errors import FeatherbackError
from featherback.runs import choose, new_run
from tests.cli.conftest import Command


def _forbid_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the preparation of data, and every measurement, fail."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise AssertionError("work was begun")

    for place, name in (
        (new_run, "_prepare_data"),
        (api, "rehearsed_baseline"),
        (Machine, "measure"),
        (choose, "product_rates"),
    ):
        monkeypatch.setattr(place, name, fail)


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A folder with files that are wrong in different ways."""
    for name, content in {
        "empty.jsonl": "", "data.xyz": "\x00\x01", "others/a.bin": "x", "taken/notes": "x", "run/run.json": "{}",
        "file": "x",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--data", "typo.jsonl", "typo.jsonl does not exist"),
        ("--data", "empty.jsonl", "is empty"),
        ("--data", "data.xyz", "unknown format"),
        ("--data", "others", "no file whose name ends in"),
        ("--eval-data", "typo.jsonl", "typo.jsonl does not exist"),
        ("--out", "taken", "is not empty"),
        ("--out", "run", "already contains a run"),
        ("--out", "file", "is a file"),
        ("--out", "file/run", "not a writable directory"),
        ("--from", "no-adapter", "no-adapter"),
        ("--map", "nonsense=question", "nonsense"),
        ("--rank", "100000", "--rank is 100000"),
        ("--seq-len", "10000000", "--seq-len 10000000"),
        ("--targets", "qkv", "qkv"),
        ("--momentum", "0.5", "momentum"),
        ("--memory", "some", "an amount such as 96MB or 1.5GB, or least or max"),
    ],
)
def test_a_mistake_costs_no_work(
    command: Command,
    chat_model: Path,
    messages: Path,
    places: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    value: str,
    says: str,
) -> None:
    _forbid_work(monkeypatch)
    monkeypatch.chdir(places)
    given = {"--data": str(messages), "--out": "new", option: value}
    said = command("train", chat_model, *(word for pair in given.items() for word in pair))
    assert (said.code, says in said.err) == (2, True), said.err
    assert not Path("new").exists()


def test_a_mistake_in_resuming_costs_no_work(
    command: Command, chat_model: Path, messages: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = places / "trained"
    fb.train(chat_model, messages, run, steps=1, seq_len=64, rank=2, samples=0, progress=False)
    _forbid_work(monkeypatch)
    for out, more, says in (
        (places / "nothing", ["--threads", 1], "There is no run "),
        (run, ["--rank", 4], "--rank was 2, not 4"),
        (run, ["--seq-len", 10**7], "--seq-len 10000000"),
    ):
        said = command("train", chat_model, "--out", out, "--resume", *more)
        assert (said.code, says in said.err) == (2, True), said.err


def test_a_run_to_resume_is_named_by_out(command: Command, chat_model: Path, tmp_path: Path) -> None:
    """Regression: a run without --out was read as the model, and the message asked for a new directory."""
    run = tmp_path / "my run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    said = command("train", run, "--resume")
    assert (said.code, f"Type: featherback train --out '{run}' --resume" in said.err) == (2, True), said.err
    for words in (("--resume",), (chat_model, "--resume")):
        assert "Type: featherback train --out RUN --resume" in command("train", *words).err


def test_a_mistake_in_python_costs_no_work(
    chat_model: Path, messages: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forbid_work(monkeypatch)
    with pytest.raises(FeatherbackError, match="does not exist"):
        fb.train(chat_model, places / "typo.jsonl", places / "new")
    with pytest.raises(FeatherbackError, match="does not exist"):
        fb.train(chat_model, messages, places / "new", eval_data=places / "typo.jsonl")
    with pytest.raises(FeatherbackError, match="is not empty"):
        fb.train(chat_model, messages, places / "taken")


def test_a_pair_that_is_not_in_a_list(chat_model: Path, tmp_path: Path) -> None:
    with pytest.raises(FeatherbackError, match=r"data=\[\('q', 'a'\)\]"):
        fb.train(chat_model, ("q", "a"), tmp_path / "run", progress=False)


def test_names_that_are_nearly_right(command: Command, chat_model: Path, messages: Path, tmp_path: Path) -> None:
    words = ("train", chat_model, "--out", tmp_path / "run")
    wrong = messages.with_suffix(".json")
    assert f"does not exist. Did you mean `{messages}`?" in command(*words, "--data", wrong).err
    said = command(*words, "--data", messages, "--memory", "leest").err
    assert "Did you mean `least`?" in said
