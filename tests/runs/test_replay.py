"""General examples among those of a run: their share, what stays as it was, and how a run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import featherback as fb
from featherback.core.naming import as_flags
from featherback.data.prompts import PromptFile
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError
from featherback.runs.config import TrainConfig
from featherback.runs.preparation import prepare_run, resume_run
from featherback.runs.replay import ASKED, GENERAL, OWN, arrange
from featherback.runs.run_directory import RunDirectory
from tests.support.tiny_chat import write_tiny_chat

Sequences = list[tuple[int, ...]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_chat(tmp_path / "chat.gguf")


def _rows(path: Path, name: str, count: int, length: int = 1) -> Path:
    rows = [{"prompt": f"{name} {i}?", "completion": f"{name * length} {i}."} for i in range(count)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def _prepared(model: Path, tmp_path: Path, out: str = "run", own: int = 60, general: int = 30, **options: Any) -> Any:
    data = _rows(tmp_path / "own.jsonl", "own", own)
    if "replay" not in options:
        options["replay"] = str(_rows(tmp_path / "general.jsonl", "old", general))
    config = TrainConfig(model=str(model), data=(str(data),), out=str(tmp_path / out), epochs=1, rank=2, **options)
    run = prepare_run(config)
    run.release()
    return run


def _all(path: Path) -> Sequences:
    file = TokenFile(path)
    return [tuple(file.seq(i)[0].tolist()) for i in range(len(file))]


@pytest.mark.parametrize("share", [0.1, 0.2, 0.75])
def test_general_examples_have_their_share(model: Path, tmp_path: Path, share: float) -> None:
    run = _prepared(model, tmp_path, replay_share=share)
    without = _prepared(model, tmp_path, "without", replay=None)
    mixed, own = _all(run.tokens / "train.tokens"), _all(without.tokens / "train.tokens")
    assert mixed[: len(own)] == own  # nothing is lost
    assert _all(run.tokens / "eval.tokens") == _all(without.tokens / "eval.tokens")  # and nothing general is held out
    general = mixed[len(own) :]
    tokens, longest = sum(map(len, general)), max(map(len, general))
    wanted = sum(map(len, own)) * share / (1 - share)
    assert wanted <= tokens < wanted + longest
    found = run.record.replay
    assert (found.examples, found.tokens) == (len(general), tokens)
    assert run.record.data["train"].sequences == len(own)


def test_too_few_are_repeated_evenly(model: Path, tmp_path: Path) -> None:
    run = _prepared(model, tmp_path, general=3, replay_share=0.5)
    general = _all(run.tokens / "train.tokens")[len(_all(run.tokens / OWN)) :]
    times = [general.count(each) for each in set(general)]
    assert len(times) == 3
    assert max(times) - min(times) <= 1


def test_the_seed_chooses(model: Path, tmp_path: Path) -> None:
    one, same, other = (
        _all(_prepared(model, tmp_path, f"run{i}", seed=seed).tokens / "train.tokens")
        for i, seed in enumerate((1, 1, 2))
    )
    assert one == same
    assert one != other


def test_examples_that_are_too_long_are_left_out(model: Path, tmp_path: Path) -> None:
    general = _rows(tmp_path / "long.jsonl", "old", 4)
    with general.open("a") as file:
        file.write(json.dumps({"prompt": "long?", "completion": "very long " * 30}) + "\n")
    run = _prepared(model, tmp_path, replay=str(general), seq_len=64, replay_share=0.5)
    mixed = _all(run.tokens / "train.tokens")
    assert max(map(len, mixed)) <= 64
    assert len(set(mixed[len(_all(run.tokens / OWN)) :])) == 4
    _rows(general, "old", 3, length=60)
    with pytest.raises(FeatherbackError, match=r"All examples of --replay .* are longer than 64 tokens"):
        _prepared(model, tmp_path, "refused", replay=str(general), seq_len=64)


@pytest.mark.parametrize("own", [60, 36])
def test_arranging_twice_changes_nothing(model: Path, tmp_path: Path, own: int) -> None:
    """Of 36 examples none are held out, though there are more than 40 once general ones are among them."""
    run = _prepared(model, tmp_path, own=own, replay_share=0.5)
    before = _all(run.tokens / "train.tokens")
    again = RunDirectory.open(run.path)
    arrange(again)
    assert _all(run.tokens / "train.tokens") == before
    assert ("eval" in again.record.data) == (own == 60)
    resumed = resume_run({"model": str(model), "out": str(run.path), "replay": str(tmp_path / "general.jsonl")})
    resumed.release()
    assert _all(run.tokens / "train.tokens") == before
    with pytest.raises(FeatherbackError, match=r"--replay-share was 0.5, not 0.1"):
        resume_run({"model": str(model), "out": str(run.path), "replay_share": 0.1})


def test_killed_before_the_mixture_was_written(model: Path, tmp_path: Path) -> None:
    run = _prepared(model, tmp_path)
    before = _all(run.tokens / "train.tokens")
    (run.tokens / OWN).replace(run.tokens / "train.tokens")  # as the files were then
    arrange(RunDirectory.open(run.path))
    assert _all(run.tokens / "train.tokens") == before


def test_a_run_from_python(model: Path, tmp_path: Path) -> None:
    general = _rows(tmp_path / "general.jsonl", "old", 8)
    rows = [{"prompt": f"{i}?", "completion": f"{i}."} for i in range(50)]
    options: dict[str, Any] = {"rank": 2, "epochs": 1, "threads": 1, "progress": False, "replay": general}
    run = fb.train(model, rows, tmp_path / "run", **options)
    assert run.summary is not None
    again = fb.train(model, rows, tmp_path / "run", resume=True, progress=False)  # the same examples are recognised
    assert again.path == run.path


def test_the_model_writes_general_examples_itself(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _prepared(model, tmp_path, replay="auto", replay_share=0.5)
    own, mixed = _all(run.tokens / OWN), _all(run.tokens / "train.tokens")
    written, asked = TokenFile(run.tokens / GENERAL), PromptFile(run.tokens / ASKED)
    assert mixed[: len(own)] == own
    assert set(mixed[len(own) :]) <= set(_all(run.tokens / GENERAL))
    for i in range(len(written)):
        tokens, supervised = written.seq(i)
        prompt = asked.prompt(i % len(asked))
        assert tokens[: len(prompt)].tolist() == prompt.tolist()
        assert supervised.tolist() == [j >= len(prompt) for j in range(len(tokens))]
    total = sum(map(len, own)) * 0.5 / 0.5
    assert total <= run.record.replay.tokens < total + max(map(len, mixed))
    assert run.record.replay.different == run.record.replay.examples == len(written)

    def interrupt(*_: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # a signal after the first answer
        patch.setattr("featherback.core.terminal.Progress.is_due", interrupt)
        with pytest.raises(KeyboardInterrupt):
            _prepared(model, tmp_path, "killed", replay="auto", replay_share=0.5)
    assert not (tmp_path / "killed" / "tokens" / GENERAL).exists()
    resumed = resume_run({"model": str(model), "out": str(tmp_path / "killed")})
    resumed.release()
    assert _all(resumed.tokens / "train.tokens") == mixed  # to the same bits


def test_another_seed_writes_other_answers(model: Path, tmp_path: Path) -> None:
    first, second = (_prepared(model, tmp_path, f"run{i}", replay="auto", seed=i) for i in range(2))
    assert _all(first.tokens / GENERAL) != _all(second.tokens / GENERAL)


def test_a_sequence_without_room_for_an_answer(model: Path, tmp_path: Path) -> None:
    with pytest.raises(FeatherbackError, match="--replay auto needs room for a prompt and an answer"):
        _prepared(model, tmp_path, replay="auto", seq_len=36)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"replay": "auto", "teacher": "t"}, "--replay auto cannot be combined with --teacher"),
        ({"replay_share": 0.3}, "--replay-share 0.3 only works with --replay PATH"),
        ({"replay": "g.jsonl", "objective": "dpo"}, "--objective dpo cannot be combined with --replay"),
        ({"replay": "g.jsonl", "replay_share": 1.0}, "--replay-share is 1.0; it must be a positive number"),
    ],
)
def test_refusals(options: dict[str, Any], said: str) -> None:
    with as_flags(), pytest.raises(FeatherbackError, match=said):
        TrainConfig(model="m", out="o", **options)


@pytest.mark.parametrize(("name", "said"), [("missing.jsonl", "missing.jsonl"), ("-", "cannot be standard input")])
def test_a_file_that_cannot_be_read(model: Path, tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(FeatherbackError, match=said):
        _prepared(model, tmp_path, replay=name)
    assert not (tmp_path / "run").exists()
