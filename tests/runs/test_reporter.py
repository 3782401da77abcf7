"""The output of a run, for people and for programs."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from featherback.core.decode import encode
from featherback.core.terminal import folded
from featherback.runs.callback import Callback
from featherback.runs.events import Begin, End, Evaluation, Event, Note, Sample, Step
from featherback.runs.run import Run
from featherback.runs.run_directory import RunDirectory
from featherback.runs.totals import Average, span_of
from featherback.view.reporter import LEAST_SECONDS, MOST_SECONDS, SHARE, JSONReporter, TextReporter, duration
from featherback.view.show import reporter
from tests.runs.conftest import Start
from tests.support.records import SUMMARY, described


def begun(steps: int, memory_mb: float | None = None) -> Begin:
    return Begin("run", steps, 0, memory_mb, 70.0, {"rank": 8})


def stepped(step: int, seconds: float = 2.0) -> Step:
    return Step(step, 3.0 / step, 2e-4, 1.0, 100, seconds, 40.2, 70.9)


def _play(callback: Callback) -> list[Event]:
    events = [begun(3), Evaluation(0, 2.5, False), *map(stepped, (1, 2, 3)), End("finished", SUMMARY)]
    for event in events:
        callback.tell(event)
    return events


def test_plain_lines() -> None:
    out = io.StringIO()
    _play(reporter(out))
    text = out.getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    assert "step 1/3  loss 3.0000  lr 2.0e-04  50 tok/s  0:04 left  footprint 40 MB  rss 71 MB" in text
    assert "held-out loss 2.5000 -> 1.2500" in text
    assert "footprint 40.3 MB, rss 71.0 MB (predicted 70.0 MB)" in text
    assert "█" in text


def _printed(steps: int, seconds: float) -> list[int]:
    """Return the steps that have a line."""
    out = io.StringIO()
    shown = TextReporter(out)
    shown.tell(begun(steps))
    for step in range(1, steps + 1):
        shown.tell(stepped(step, seconds))
    return [int(re.match(r"step +(\d+)/", line)[1]) for line in out.getvalue().splitlines()]  # type: ignore[index]


@pytest.mark.parametrize(
    ("steps", "seconds", "least", "most"),
    [(1000, 0.01, 6, 9), (40, 3.0, 15, 25), (1000, 20.0, 40, 70), (3000, 60.0, 180, 260), (100_000, 0.1, 40, 70)],
)
def test_lines_of_steps_get_rarer(steps: int, seconds: float, least: int, most: int) -> None:
    """The first and the last are there; in between they are never so far apart as an eighth of the time, nor as a
    quarter of an hour, and a step.
    """
    printed = _printed(steps, seconds)
    assert (printed[0], printed[-1]) == (1, steps)
    assert least <= len(printed) <= most
    for before, after in pairwise(printed):
        wait = seconds * (after - before)
        assert wait <= min(max(LEAST_SECONDS, SHARE * seconds * before), MOST_SECONDS) + 1.01 * seconds


def test_every_measured_loss_has_a_line() -> None:
    out = io.StringIO()
    shown = TextReporter(out)
    shown.tell(begun(1000))
    for step in range(1, 1001):
        shown.tell(stepped(step, 0.001))
        shown.tell(Evaluation(step, 2.0, False))
    assert out.getvalue().count("held-out loss") == 1000


def test_the_loss_that_sums_up_a_run_is_its_average() -> None:
    out = io.StringIO()
    shown = TextReporter(out)
    shown.tell(begun(90))
    for step in range(1, 91):
        shown.tell(replace(stepped(step), loss=3.0 if step % 2 else 1.0))
    shown.tell(End("finished", replace(SUMMARY, steps=90)))
    (said,) = re.findall(r"^loss 3\.000 .* (\d\.\d+) \(average of 10 steps\)$", out.getvalue(), re.MULTILINE)
    assert 1.5 < float(said) < 2.5


def test_a_terminal_breaks_lines_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = _Terminal()
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((60, 24)))
    monkeypatch.setattr(out, "fileno", lambda: 1)
    words = [f"word{number}" for number in range(30)]
    shown = reporter(out)
    shown.tell(Note("note: " + " ".join(words)))
    shown.tell(Sample("asked", " ".join(words), "before", "after"))
    shown.tell(End("finished", SUMMARY))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) < 60
    assert out.getvalue().split().count("word7") == 2
    assert any(line.startswith("expected  word0 ") for line in lines)
    assert any(line.startswith("          word") for line in lines)
    shown.tell(Note("next: featherback chat " + 60 * "m" + ".gguf --adapter run"))
    assert out.getvalue().splitlines()[-1].endswith(".gguf --adapter run")  # to be pasted


def test_styles_take_no_room() -> None:
    green = "\x1b[1;32m{}\x1b[0m".format
    text = " ".join(green(f"word{number}") for number in range(20))
    lines = folded(text, 60, "  | ").splitlines()
    assert lines[0] == "  | " + " ".join(green(f"word{number}") for number in range(9))
    assert lines[1].startswith("    " + green("word9"))
    assert folded(text, None, "  | ") == f"  | {text}"


def test_json_lines_are_the_events() -> None:
    out = io.StringIO()
    events = _play(JSONReporter(out))
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert rows == [{"event": event.name, **event.values()} for event in events]
    assert [row["event"] for row in rows] == ["begin", "evaluation", "step", "step", "step", "end"]
    assert rows[0]["configuration"] == {"rank": 8}
    assert rows[-1]["summary"] == encode(SUMMARY)


_WORSE = "worse than before training"


@pytest.mark.parametrize(
    ("best_step", "first", "best", "last", "said"),
    [
        (12, 3.0, 2.0, 4.5, "held-out loss 3.0000 -> 4.5000; best 2.0000 at step 12, kept"),
        (12, 0.5, 2.0, 4.5, f"held-out loss 0.5000 -> 4.5000; best 2.0000 at step 12, kept, {_WORSE}"),
        (20, 3.0, 2.0, 2.0, "held-out loss 3.0000 -> 2.0000"),
        (20, 0.5, 2.0, 2.0, f"held-out loss 0.5000 -> 2.0000, {_WORSE}"),
        (None, 3.0, None, 3.0, "held-out loss 3.0000 before training"),
    ],
)
def test_the_adapter_that_is_kept_is_named(
    tmp_path: Path, best_step: int | None, first: float, best: float | None, last: float, said: str
) -> None:
    held_out = {"first_eval_loss": first, "final_eval_loss": last, "best_step": best_step, "best_eval_loss": best}
    summary = replace(SUMMARY, **held_out, steps=20)
    out = io.StringIO()
    TextReporter(out).tell(End("finished", summary))
    assert said in out.getvalue().splitlines()
    run = RunDirectory.create(tmp_path / "run", status="finished", summary=summary, **described())
    assert repr(Run(run, None)) == f"Run({str(run.path)!r}, finished, 20 steps, {said})"  # type: ignore[arg-type]


def test_why_a_run_ended_early_is_said_to_everybody() -> None:
    out = io.StringIO()
    TextReporter(out).tell(End("stopped early", SUMMARY))
    assert "stopped early: the held-out loss no longer fell" in out.getvalue().splitlines()


def test_durations() -> None:
    assert [duration(s) for s in (0, 6.6, 754, 11100)] == ["0:00", "0:07", "12:34", "3:05:00"]


class _Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("term", "encoding"), [("dumb", "utf-8"), ("", "utf-8"), ("xterm", "ascii")])
def test_a_terminal_that_cannot_show_the_view_gets_plain_lines(
    monkeypatch: pytest.MonkeyPatch, term: str, encoding: str
) -> None:
    monkeypatch.setenv("TERM", term)
    out = _Terminal()
    out.encoding = encoding  # type: ignore[misc]
    _play(reporter(out))
    assert "\x1b" not in out.getvalue()
    assert "step 1/3" in out.getvalue()


def test_a_resumed_run_draws_its_whole_curve(start: Start, tmp_path: Path) -> None:
    start(steps=6)
    shown = TextReporter(io.StringIO())
    run = start(steps=9, resume=True, reporter=shown)
    moving = Average(span_of(9))
    assert shown.averages.points == [(line["step"], moving.add(line["loss"])) for line in run.metrics()]
