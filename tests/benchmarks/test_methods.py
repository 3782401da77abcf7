"""The comparison of methods on a tiny model: its rows run, and its figures equal the runs' records."""

from itertools import accumulate
from pathlib import Path

import pytest

from benchmarks import methods
from benchmarks.clocked_run import Clock
from benchmarks.methods import Learned, rows, train_row
from benchmarks.pictures import learning_figure
from benchmarks.place import Place
from featherback import models
from featherback.engine.host.interrupt import Interrupt
from featherback.errors import FeatherbackError
from featherback.runs.events import Evaluation, Step
from featherback.runs.run_directory import RunDirectory
from tests.support.tiny_chat import write_messages, write_tiny_chat

STEPS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("bench") / "m.gguf")


def test_every_row_is_of_a_registry() -> None:
    names = [row.name for row in rows()]
    assert names[0] == "mesp"  # whose time the others are given
    assert {"mezo", "sparse_mezo", "lcsb", "lomo", "adalomo", "apollo", "apollo_mini", "mlorc"} <= set(names)
    assert {"adamw", "adamw8bit", "spartan", "ia3", "dora", "last:25%"} <= set(names)
    assert not {"mebp", "sgd"} & set(names)
    assert [str(row) for row in rows(["mezo", "lomo"], [1.0, 0.1])] == [
        "LoRA, mezo",
        "LoRA, mezo, rate x 0.1",
        "whole, lomo",
        "whole, lomo, rate x 0.1",
    ]
    with pytest.raises(FeatherbackError, match="--rows has sgd; expected one of: mesp, "):
        rows(["mesp", "sgd"])


@pytest.mark.parametrize("name", ["mezo", "adamw"])
def test_the_numbers_are_those_of_the_run(model: Path, tmp_path: Path, name: str) -> None:
    (row,) = rows([name], [0.5])
    seen = train_row(row, models.load(model), [str(write_messages(tmp_path / "d", 60))], tmp_path / "run", STEPS)
    run = RunDirectory.open(tmp_path / "run")
    lines, summary = list(run.metrics()), run.record.summary
    assert seen.failure is None
    assert len(lines) == summary.steps == STEPS
    assert [step for step, _, _ in seen.curve] == [0, 2, 4, 6]
    times = [0.0, *accumulate(line["seconds"] for line in lines)]
    assert [seconds for _, seconds, _ in seen.curve] == times[::2]
    assert seen.after(STEPS) == (pytest.approx(summary.seconds), summary.final_eval_loss)
    assert (seen.footprint_mb, seen.rss_mb) == (summary.peak_footprint_mb, summary.peak_rss_mb)
    assert {line["lr"] for line in lines} == {seen.learning_rate}
    held = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert seen.disk_mb is not None
    assert 0 < seen.disk_mb * 1e6 < 4 * held


def test_a_run_goes_on_until_it_has_had_its_steps_and_its_time(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(10))
    (tmp_path / "b").hardlink_to(tmp_path / "a")  # the same bytes
    interrupt = Interrupt()
    clock = Clock(tmp_path, steps=2, seconds=5.0, interrupt=interrupt)
    asked = []
    for step in range(1, 5):
        clock.step(Step(step, 1.0, 0.1, 1.0, 8, 1.5, 30.0, 50.0))
        assert not interrupt.requested  # the last loss is not known yet
        clock.evaluation(Evaluation(step, 1.0, best=False))
        asked.append(interrupt.requested)
    assert asked == [False, False, False, True]  # 6 seconds
    assert clock.disk == 10
    soon = Clock(tmp_path, steps=2, seconds=0.0, interrupt=(interrupt := Interrupt()))
    soon.evaluation(Evaluation(1, 1.0, best=True))
    assert not interrupt.requested
    soon.evaluation(Evaluation(2, 1.0, best=True))
    assert interrupt.requested


@pytest.mark.full("a whole run of a benchmark")
def test_a_published_row(model: Path, tmp_path: Path) -> None:
    published = methods.rows_of_methods(Place(tmp_path, print, str(model), tiny=True))
    assert list(published) == [row.key for row in rows(methods.published())]
    for name, title in (("lomo", "whole, lomo"), ("spartan", "adapter, spartan"), ("last-25", "LoRA, last:25%")):
        found = published[name]()
        assert (found["row"], found["steps"]) == (title, 2)
        assert found["curve"][0] == [0, 0.0, found["before"]]
        assert found["curve"][-1] == [2, found["steps_s"], found["after"]]
    assert not any(tmp_path.iterdir())


def test_too_little_to_hold_out_is_said(model: Path, tmp_path: Path) -> None:
    data = str(write_messages(tmp_path / "d", 8))
    with pytest.raises(FeatherbackError, match="too few examples for some to be held out"):
        train_row(rows(["mesp"])[0], models.load(model), [data], tmp_path / "run", 3)


def test_a_curve_is_read_at_steps() -> None:
    seen = Learned("a", 0.1, [(0, 0.0, 3.0), (4, 10.0, 2.0), (8, 20.0, 1.0)], 50.0, 70.0, 300.0)
    assert (seen.after(4), seen.after(5)) == ((10.0, 2.0), None)


def test_the_picture_has_a_line_and_a_dot_each() -> None:
    curves = {"a & b": [(0.0, 3.0), (10.0, 1.0)], "c": [(0.0, 3.0), (20.0, 2.0)]}
    ends = {"a & b": (40.0, 1.0), "c": (90.0, 2.0)}
    learnt, ended = learning_figure("t", curves, ends).axes
    assert {line.get_label(): list(zip(*line.get_data())) for line in learnt.lines} == curves
    assert {line.get_label(): tuple(line.get_xydata()[0]) for line in ended.lines} == ends
    assert [line.get_color() for line in learnt.lines] == [line.get_color() for line in ended.lines]
