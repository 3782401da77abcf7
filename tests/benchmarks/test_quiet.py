"""A row counts only if the machine was quiet and two trials agree; impossible figures are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import quiet
from benchmarks.figures import figure
from benchmarks.measure import Part, _measure, out_of_order
from benchmarks.place import Place
from benchmarks.quiet import Counters, Disturbance
from benchmarks.results import Result
from featherback.errors import FeatherbackError
from tests.benchmarks.test_results import begun

__all__ = ["begun"]


def test_what_others_use_is_seen(tmp_path: Path) -> None:
    """Of two looks: 100 s of processor time, of which this process used 30, others 20, and the host withheld 10."""
    before = Counters(total=1000, busy=400, stolen=5, own=50)
    found = Disturbance.between(before, Counters(total=1100, busy=450, stolen=15, own=80))
    assert (found.others, found.steal) == (pytest.approx(0.2), pytest.approx(0.1))
    assert not found.is_small
    assert Disturbance.between(before, Counters(total=1100, busy=432, stolen=6, own=80)).is_small
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 200 300 4000 50 6 7 80 0 0\ncpu0 1 2 3\n")
    counters = Counters.now(stat)
    assert counters is not None
    assert counters.total == pytest.approx(4743 / 100)
    assert counters.busy == pytest.approx(613 / 100)
    assert counters.stolen == pytest.approx(0.8)
    assert Counters.now(tmp_path / "none") is None


def test_own_children_are_not_others() -> None:
    before = Counters.now()
    assert before is not None
    subprocess.run([sys.executable, "-c", "for _ in range(10**7): pass"], check=True)
    after = Counters.now()
    assert after is not None
    assert after.own - before.own > 0.05


def test_waiting_ends() -> None:
    said: list[str] = []
    looks = iter([Disturbance(0.5, 0), Disturbance(0.4, 0), Disturbance(0.01, 0)])
    assert quiet.wait(said.append, look=lambda: next(looks)) is None
    assert said == ["  waiting for a quiet machine: others used 50% of the processor, and 0% was withheld"]
    loud = Disturbance(0, 0.3)
    assert quiet.wait(said.append, patience=0, look=lambda: loud) == loud
    assert quiet.wait(said.append, look=lambda: None) is None  # a system without counters


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(quiet, "wait", lambda *_: None)
    return Place(tmp_path, lambda _: None)


def disturbances(monkeypatch: pytest.MonkeyPatch, *shares: float) -> None:
    """Let the trials see these shares of others, one after another."""
    seen: Iterator[float] = iter(shares)
    monkeypatch.setattr(Disturbance, "between", classmethod(lambda cls, *_: cls(next(seen), 0.0)))


def measured(part: Part, place: Place, tmp_path: Path) -> Result:
    _measure(part, place, tmp_path / "results", tmp_path / "unfinished", None)
    return Result.read(tmp_path / "results" / f"{part.name}.json")


def test_rows_take_turns_until_two_trials_agree(
    begun: Result, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    seconds = {"a": iter([2.0, 1.5, 1.52]), "b": iter([4.0, 4.1])}

    def row(key: str) -> dict[str, float]:
        order.append(key)
        return {"step_s": next(seconds[key]), "rss_mb": 10.0}

    disturbances(monkeypatch, *[0.0] * 5)
    found = measured(Part("part", lambda _: {key: lambda key=key: row(key) for key in "ab"}, 1, ()), place, tmp_path)
    assert order == ["a", "b", "a", "b", "a"]
    assert (found.rows["a"]["step_s"], found.rows["a"]["trials"], found.rows["a"]["spread"]) == (1.5, 3, 0.013)
    assert found.rows["b"]["step_s"] == 4.0
    assert not found.missing


def test_a_disturbed_trial_does_not_count(
    begun: Result, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbances(monkeypatch, 0.3, 0.0, 0.0)
    seconds = iter([9.0, 2.0, 2.0])
    found = measured(Part("part", lambda _: {"a": lambda: {"step_s": next(seconds)}}, 1, ()), place, tmp_path)
    assert (found.rows["a"]["step_s"], found.rows["a"]["trials"]) == (2.0, 2)


def test_a_row_that_could_not_be_measured_says_so(
    begun: Result, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbances(monkeypatch, *[0.3] * 5)
    found = measured(Part("part", lambda _: {"a": lambda: {"step_s": 9.0, "rss_mb": 5.0}}, 1, ()), place, tmp_path)
    assert (found.rows["a"]["step_s"], found.rows["a"]["rss_mb"]) == (None, 5.0)
    assert found.missing == {"a": "no time could be measured: others used 30% of the processor, and 0% was withheld"}
    assert figure("part:a:step_s", {"part": found}) == "(not measured)"
    assert figure("part:a:step_s / part:a:rss_mb", {"part": found}) == "(not measured)"


def test_trials_that_do_not_agree_are_recorded(
    begun: Result, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbances(monkeypatch, *[0.0] * 5)
    seconds = iter([2.0, 2.4, 3.0, 3.6, 4.2])
    found = measured(Part("part", lambda _: {"a": lambda: {"step_s": next(seconds)}}, 1, ()), place, tmp_path)
    assert (found.rows["a"]["step_s"], found.rows["a"]["spread"]) == (2.0, 0.2)
    assert found.missing == {"a": "its two fastest trials of 5 differ by 20%"}


def test_impossible_figures_are_refused(
    begun: Result, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        "0.5b-256-mesp": {"tokens": 256, "step_s": 3.0},
        "0.5b-512-mesp": {"tokens": 512, "step_s": 1.9},
        "0.5b-512-mebp": {"tokens": 512, "step_s": 1.0},
    }
    assert out_of_order(rows) == ["0.5b-512-mesp took 1.9 s a step, and 0.5b-256-mesp took 3.0"]
    assert not out_of_order({key: row for key, row in rows.items() if row["step_s"] != 1.9})
    disturbances(monkeypatch, *[0.0] * 6)
    with pytest.raises(FeatherbackError, match="-512-mesp took"):
        measured(
            Part("part", lambda _: {key: lambda row=row: row for key, row in rows.items()}, 1, ()), place, tmp_path
        )
    assert not (tmp_path / "results").exists()
