"""Without held-out data, some examples are held out: once, chosen by the run's seed, and none are lost."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import featherback as fb
from featherback import models
from featherback.cli.preamble import print_preamble
from featherback.data.duplicates import OverlapCounter, hash_part
from featherback.data.token_file import TokenFile
from featherback.runs import trainer
from featherback.runs.config import TrainConfig
from featherback.runs.held_out import FEWEST, LEAST, MOST, hold_out, tokens_before_split, was_split
from featherback.runs.panels.run import MEASUREMENTS
from featherback.runs.preparation import prepare_run, resume_run
from featherback.runs.rehearsal import rehearsed_baseline
from featherback.runs.run_directory import RunDirectory
from tests.support.tiny_models import TINY_LLAMA

Sequence = tuple[tuple[int, ...], tuple[bool, ...]]


def _examples(count: int) -> list[tuple[list[int], list[int]]]:
    """Return examples without duplicates."""
    tokens = np.random.default_rng(3).integers(0, TINY_LLAMA.vocab_size, (count, 16)).tolist()
    return [(each, [-100] * 4 + each[4:]) for each in tokens]


def _prepared(model: Path, out: Path, examples: int | list[Any], **options: Any) -> RunDirectory:
    data = _examples(examples) if isinstance(examples, int) else examples
    length = {} if "steps" in options else {"epochs": 3}
    config = TrainConfig(model=str(model), out=str(out), seq_len=16, rank=2, **length, **options)
    run = prepare_run(config, data)
    run.release()
    return run


def _all(path: Path) -> list[Sequence]:
    file = TokenFile(path)
    pairs = (file.seq(i) for i in range(len(file)))
    return [(tuple(tokens.tolist()), tuple(supervised.tolist())) for tokens, supervised in pairs]


def _parts(run: RunDirectory) -> tuple[list[Sequence], list[Sequence]]:
    held = run.tokens / "eval.tokens"
    return _all(run.tokens / "train.tokens"), _all(held) if held.exists() else []


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [(FEWEST - 1, 0.05, 0), (FEWEST, 0.05, LEAST), (200, 0.05, 10), (200, 0.2, 40), (2000, 0.05, MOST), (200, 0, 0)],
)
def test_a_share_is_held_out_and_nothing_lost(
    tiny_path: Path, tmp_path: Path, count: int, share: float, expected: int
) -> None:
    run = _prepared(tiny_path, tmp_path / "run", count, eval_share=share)
    whole = _prepared(tiny_path, tmp_path / "whole", count, eval_share=0)
    rest, held = _parts(run)
    everything, none = _parts(whole)
    assert (len(held), len(rest), none) == (expected, count - expected, [])
    ahead = iter(everything)
    assert all(any(each == one for one in ahead) for each in rest)  # in the same order
    assert sorted(rest + held) == sorted(everything)


def test_the_record_counts_what_is_trained_and_what_is_held_out(tiny_path: Path, tmp_path: Path) -> None:
    run = _prepared(tiny_path, tmp_path / "run", 100)
    data = run.record.data
    for name in ("train", "eval"):
        file = TokenFile(run.tokens / f"{name}.tokens")
        counts = {"sequences": len(file), "tokens": file.n_tokens, "supervised_tokens": file.n_targets}
        assert vars(data[name]).items() >= counts.items()
    assert (data["train"].sequences, data["eval"].sequences_before) == (95, 100)
    assert was_split(run)
    assert not was_split(_prepared(tiny_path, tmp_path / "few", FEWEST - 1))


def test_the_seed_chooses(tiny_path: Path, tmp_path: Path) -> None:
    first, again, other = (
        _parts(_prepared(tiny_path, tmp_path / name, 100, seed=seed))[1]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("moved", [False, True], ids=["before", "after"])
def test_a_run_killed_while_they_are_taken_has_the_same(tiny_path: Path, tmp_path: Path, moved: bool) -> None:
    """The examples that are held out are written first, then the rest, and the record last."""
    run = _prepared(tiny_path, tmp_path / "run", 100)
    parts, record = _parts(run), run.record.data
    whole = _prepared(tiny_path, tmp_path / "whole", 100, eval_share=0)
    if not moved:
        (whole.tokens / "train.tokens").replace(run.tokens / "train.tokens")
    run.update(data=whole.record.data)
    hold_out(run)
    assert _parts(run) == parts
    assert run.record.data == record


def test_the_data_are_known_again(tiny_path: Path, tmp_path: Path) -> None:
    named = {"model": str(tiny_path), "out": str(_prepared(tiny_path, tmp_path / "run", 100).path)}
    resume_run(named, _examples(100)).release()
    with pytest.raises(fb.FeatherbackError, match="other data"):
        resume_run(named, _examples(101))


def test_a_run_measures_them_ten_times_and_keeps_the_best(tiny_path: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"seq_len": 64, "rank": 2, "progress": False}
    run = fb.train(tiny_path, _examples(60), tmp_path / "run", steps=40, **options)
    measured = [each.step for each in RunDirectory.open(run.path).record.evaluations]
    assert measured == [*range(0, 41, 40 // MEASUREMENTS)][: len(measured)]
    assert run.summary.best_eval_loss == min(each.loss for each in RunDirectory.open(run.path).record.evaluations[1:])


def test_measuring_takes_a_fifth_of_the_time_at_most() -> None:
    config = TrainConfig(model="m", out="o", seq_len=100, batch_tokens=200, accumulate=5)
    assert config.measured_every(1000, 1000, mean=50) == 100
    assert config.measured_every(1000, 600_000, mean=50) == 1000
    assert config.most_held_out(1000, mean=50) == 600  # measured once before and, the mean and the last, twice after
    assert replace(config, keep="last").most_held_out(1000, mean=50) == 900
    assert TrainConfig(model="m", out="o", eval_every=7).measured_every(1000, 600_000, mean=50) == 7
    four = TrainConfig(model="m", out="o", seq_len=100, batch_size=4, accumulate=5)  # 1,000 tokens a step, not 2,000
    assert four.measured_every(100, 60_000, mean=50) == 100
    assert four.measured_every(100, 66_000, mean=50) == 110


@pytest.fixture
def rising(monkeypatch: pytest.MonkeyPatch) -> None:
    """The held-out loss falls once, and then only rises."""
    losses = iter([2.0, 1.0, *(1.0 + 0.1 * number for number in range(1, 100))])
    monkeypatch.setattr(trainer, "evaluate", lambda *_: SimpleNamespace(loss=next(losses)))


@pytest.mark.usefixtures("rising")
@pytest.mark.parametrize(("named", "end"), [({}, 8), ({"eval_every": 2}, 20), ({"patience": 5}, 12)])
def test_a_run_that_only_repeats_ends(tiny_path: Path, tmp_path: Path, named: dict[str, int], end: int) -> None:
    options: dict[str, Any] = {"seq_len": 64, "rank": 2, "progress": False, "steps": 20}
    run = fb.train(tiny_path, _examples(60), tmp_path / "run", **options, **named)
    assert (run.summary.steps, run.summary.best_step) == (end, 2)
    assert run.status == ("finished" if end == 20 else "stopped early")


@pytest.mark.parametrize(("third", "end"), [(3.8, 6), (1.1, 20)])
def test_a_run_that_loses_what_the_model_knew_ends(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, third: float, end: int
) -> None:
    """Every loss is a new best of those after training began, so patience alone would end neither run."""
    losses = iter([1.0, 4.0, 3.9, third, *(0.9 - 0.01 * number for number in range(20))])
    monkeypatch.setattr(trainer, "evaluate", lambda *_: SimpleNamespace(loss=next(losses)))
    config = TrainConfig(model=str(tiny_path), out=str(tmp_path / "run"), steps=20, seq_len=64, rank=2)
    run = prepare_run(config, _examples(60))
    status = trainer.train_run(run)
    assert (run.record.summary.steps, run.record.summary.worse) == (end, end < 20)
    assert status == ("finished" if end == 20 else "stopped early")


def test_copies_are_not_held_out(tiny_path: Path, tmp_path: Path) -> None:
    """A duplicate would be trained on too."""
    once, often = _examples(60)[:20], _examples(60)[20:]
    rest, held = _parts(_prepared(tiny_path, tmp_path / "run", [*once, *often * 3], eval_share=0.2))
    assert held
    assert not set(held) & set(rest)
    assert not _parts(_prepared(tiny_path, tmp_path / "none", often * 3))[1]


@pytest.mark.parametrize(("steps", "expected"), [(3, 0), (60, 5)])
def test_a_short_run_is_not_spent_on_measuring(tiny_path: Path, tmp_path: Path, steps: int, expected: int) -> None:
    """Two measurements must take no more than a fifth of the time: 3 steps of 16 tokens leave room for 14 tokens."""
    run = _prepared(tiny_path, tmp_path / "run", 100, steps=steps)
    assert len(_parts(run)[1]) == expected


def test_what_is_held_out_is_read_beside_what_the_steps_need() -> None:
    config = TrainConfig(model="m", out="o", steps=10, seq_len=100)
    assert tokens_before_split(1000, config) >= 1000 / 0.95 + LEAST * 100 - 1


@pytest.mark.usefixtures("rising")
def test_a_run_that_stopped_early_goes_on_when_it_is_told_to(tiny_path: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"seq_len": 64, "rank": 2, "progress": False, "steps": 20}
    run = fb.train(tiny_path, _examples(60), tmp_path / "run", **options)
    assert run.summary.steps == 8
    named = {"model": str(tiny_path), "out": str(run.path)}
    with pytest.raises(fb.FeatherbackError, match=r"stopped early, after step 8, .* set --steps, --epochs"):
        resume_run(named)
    kept = run.summary
    run.directory.update(summary=replace(kept, first_eval_loss=(kept.best_eval_loss or 0) / 2))
    with pytest.raises(fb.FeatherbackError, match=r"It is worse than before training: the held-out loss was"):
        resume_run(named)
    run.directory.update(summary=kept)
    onward = resume_run({**named, "steps": 30})
    trainer.train_run(onward)
    assert onward.record.summary.steps == 15  # three more measurements, every third step


def test_a_plan_for_more_memory_than_there_is_is_made_anew(tiny_path: Path, tmp_path: Path) -> None:
    run = _prepared(tiny_path, tmp_path / "run", 12, steps=2)
    run.update(plan=replace(run.plan, predicted_rss_mb=9e8))
    said: list[str] = []
    again = resume_run({"model": str(tiny_path), "out": str(run.path)}, note=said.append)
    again.release()
    assert again.plan.predicted_rss_mb is not None
    assert again.plan.predicted_rss_mb < 1e5
    assert re.search(r"the run's plan needs 900000000 MB, but only \d+ MB are free; making a new plan", said[0])


def test_held_out_examples_that_are_trained_are_counted(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Token for token, and with the same ones trained: nothing was said of them."""
    known = _examples(3)
    unlike = (known[1][0], [-100] * 5 + known[1][0][5:])
    held = [known[0], known[0], unlike, ([1, 2, 3], [1, 2, 3])]
    options = TrainConfig(
        model=str(tiny_path), eval_data=("given",), out=str(tmp_path / "run"), seq_len=16, rank=2, steps=1
    )
    run = prepare_run(options, data=known, eval_data=held, baseline=rehearsed_baseline)
    run.release()
    assert run.record.data["eval"].also_trained == 2
    print_preamble(run, models.load(run.config.model))
    assert "2 of the 4 held-out sequences are also in the training data" in capsys.readouterr().out


def test_very_many_held_out_examples_are_looked_for_in_little_memory() -> None:
    known = OverlapCounter(most=64)
    for i in range(1000):
        known.note(hash_part(str(i).encode()))
    for i in range(500, 3000):
        known.see(hash_part(str(i).encode()))
    assert not known.is_exact
    assert len(known._noted) <= 64
    assert 300 < known.count < 700
