"""The report of a run is one self-contained file, whatever the run's name and length."""

from __future__ import annotations

import json
import math
import re
import sys
import tracemalloc
import xml.etree.ElementTree as ElementTree
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from featherback.cli.app import run as command
from featherback.data.report import PrepareReport
from featherback.errors import FeatherbackError
from featherback.runs.callback import Callback
from featherback.runs.events import Note, Sample, Step
from featherback.runs.record import HeldOutLoss
from featherback.runs.run_directory import RunDirectory
from featherback.runs.totals import Average
from featherback.view.report.chart import LARGE, SMALL, Line, chart, loss_svg
from featherback.view.report.curves import Curves
from featherback.view.report.page import COUNTS, page, write_report
from tests.runs.conftest import Start

HOSTILE = "<script>alert(1)</script>\"'&\u202e\x1b[2J"
_VOID = {"meta", "br"}


class Parsed(HTMLParser):
    """Checks that every element is closed, and collects attribute values."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        self.open += [] if tag in _VOID else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _check(text: str) -> Parsed:
    """Self-contained: no script, nothing to fetch, nothing to click."""
    parsed = Parsed(text)
    assert not parsed.tags & {"script", "img", "link", "a", "iframe", "object", "foreignObject", "use", "image"}
    for name, value in parsed.attributes:
        assert name not in ("src", "href", "xlink:href", "srcset", "style")
        assert not name.startswith("on")
        assert "//" not in (value or "")
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "http" not in re.sub("http-equiv", "", text)
    assert "default-src 'none'" in text
    return parsed


def test_every_run_leaves_a_report(start: Start) -> None:
    run = start(steps=9, eval_seed=3, eval_every=3, memory=200_000_000)
    parsed = _check((run.path / "report.html").read_text())
    for said in (
        "Loss, nats per token",
        "held-out",
        "Memory, MB",
        "budget 200 MB",
        "Learning rate",
        "--rank",
        "9 steps",
    ):
        assert said in parsed.text, said
    assert "prefers-color-scheme:dark" in parsed.text
    before = (run.path / "report.html").read_bytes()
    (run.path / "report.html").unlink()
    assert command(["report", str(run.path)]) == 0
    assert (run.path / "report.html").read_bytes() == before
    assert ElementTree.fromstring((run.path / "loss.svg").read_text()).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_held_out_loss_is_that_of_the_adapter_that_is_kept(start: Start) -> None:
    """The loss before training may be lower, but there was no adapter then."""
    run = start(steps=9, eval_seed=3, eval_every=3)
    for losses, said in (
        ([1.5, 4.0, 3.25, 5.0], "Held-out loss3.2500at step 6, kept; worse than the 1.5000 before training"),
        ([4.5, 4.0, 3.25, 5.0], "Held-out loss3.2500at step 6, kept; 4.5000 before training"),
        ([1.5], "Held-out loss1.5000before training"),
    ):
        run.update(evaluations=[HeldOutLoss(3 * i, loss) for i, loss in enumerate(losses)])
        assert said in Parsed("".join(page(run, Curves(run)))).text


def test_the_data_are_named_as_people_name_them(start: Start) -> None:
    run = start(steps=100, count=100, data=None)
    found = run.record.data
    counts = {"sequences": found["train"].sequences, "tokens": found["train"].tokens, "supervised_tokens": 9}
    run.update(data={**found, "train": PrepareReport(["d"], 16, **counts, enough=7, skipped=3)})
    trained, held = (found[name].sequences for name in ("train", "eval"))
    assert trained + held == 100
    text = Parsed("".join(page(run, Curves(run)))).text
    data = text[text.index("Data") : text.index("Options")]
    assert f"trained on: given from Pythonheld out: {held} of 100 sequences" in data
    assert f"sequences{trained}{held}" in data
    assert "records skipped: unusable3" in data
    assert "None" not in data
    assert "enough" not in data


def test_every_count_of_the_report_is_one_of_the_record() -> None:
    assert COUNTS.keys() <= {field.name for field in fields(PrepareReport)}


def test_hostile_names_are_text(start: Start, tmp_path: Path) -> None:
    run = start(steps=2)
    record = json.loads((run.path / "run.json").read_text())
    record["base_model"] = record["configuration"]["model"] = record["configuration"]["out"] = HOSTILE
    record["status"] = "failed"
    record["created"] = record["machine"]["system"] = record["versions"]["numpy"] = HOSTILE
    record["failure"] = {"step": 1, "reason": HOSTILE}
    record["plan"]["keep"] = {HOSTILE: 1}
    (run.path / "run.json").write_text(json.dumps(record))
    opened = RunDirectory.open(run.path)
    text = "".join(page(opened, Curves(opened)))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<script>alert(1)</script>\"'&\\u202e\\u001b[2J" in _check(text).text


def test_a_run_without_a_step_and_one_that_is_going_on_have_reports(start: Start) -> None:
    class Look(Callback):
        """Makes the report in the midst of a run."""

        def step(self, event: Step) -> None:
            if event.step == 2:
                opened = RunDirectory.open(run_path)
                self.seen = "".join(page(opened, Curves(opened)))

    run_path = start("parts", steps=1).path
    look = Look()
    start("parts", reporter=look, steps=3, resume=True)
    assert "running" in _check(look.seen).text
    (run_path / "metrics.jsonl").unlink()
    assert "no steps yet" in _check(write_report(RunDirectory.open(run_path)).read_text()).text


@pytest.mark.parametrize("value", ["1e400", "-1e400", "NaN", "1" + 400 * "0", "null", '"x"', "true"])
@pytest.mark.parametrize("name", ["lr", "rss_mb"])
def test_a_number_that_cannot_be_drawn_is_left_out(start: Start, name: str, value: str) -> None:
    run = start("odd", steps=2)
    lines = run.metrics_path.read_text().splitlines()
    number = json.loads(lines[1])[name]
    lines[1] = lines[1].replace(f'"{name}": {number}', f'"{name}": {value}')
    assert f"{value}," in lines[1] or lines[1].endswith(f"{value}}}")
    run.metrics_path.write_text("\n".join(lines) + "\n")
    opened = RunDirectory.open(run.path)
    _check(write_report(opened).read_text())
    curves = Curves(opened)
    assert len((curves.rates if name == "lr" else curves.rss).points) == 1


def _long(start: Start, count: int) -> RunDirectory:
    run = start("long", steps=1)
    line = json.loads((run.path / "metrics.jsonl").read_text())
    with open(run.path / "metrics.jsonl", "w") as file:
        for step in range(1, count + 1):
            loss = 9.75 if step == 31_111 else 2 + math.cos(step)
            file.write(json.dumps({**line, "step": step, "loss": loss}) + "\n")
    return RunDirectory.open(run.path)


@pytest.mark.full("test_totals.py keeps the shape of a long run in bounded memory")
def test_a_long_run_takes_little_memory_and_its_extremes_are_seen(start: Start) -> None:
    run = _long(start, 50_000)
    tracemalloc.start()
    path = write_report(run)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000  # 50,000 lines as dictionaries take some 20 MB
    assert path.stat().st_size < 200_000
    curves = Curves(run)
    assert max(curves.losses.extremes, key=lambda point: point[1])[1] == 9.75
    assert abs(curves.averages.points[-1][1] - 2) < 0.01
    assert "moving average of 1666 steps" in path.read_text()
    assert "50\u202f000 steps" in path.read_text()


def test_a_report_that_cannot_be_written_costs_no_run(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    class Notes(Callback):
        text = ""

        def note(self, event: Note) -> None:
            self.text += event.text

    def full(_: Any) -> None:
        raise FeatherbackError("Cannot write report.html: No space left on device.")

    monkeypatch.setattr("featherback.view.report.page.write_report", full)
    notes = Notes()
    run = start(steps=2, reporter=notes)
    assert RunDirectory.open(run.path).record.status == "finished"
    assert notes.text == (
        "note: the report could not be written: Cannot write report.html: No space left on device. "
        f"To write it later: featherback report {run.path}"
    )


def test_a_png_without_matplotlib_is_a_sentence(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(steps=2)
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert command(["report", str(run.path), "--png"]) == 2
    assert "pip install 'featherback[png]'" in capsys.readouterr().err
    assert not (run.path / "report.png").exists()


def test_what_is_no_run_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["report", str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err


@pytest.mark.parametrize("losses", [[], [2.5], [2.5, 2.5], [5e-4, 3e-4], [3.0, 2.0, 1000.0], [-1.0, 1.0], [0.0]])
@pytest.mark.parametrize("limit", [(), (("budget", 7.0),)])
def test_a_chart_is_well_formed_and_stays_inside(losses: list[float], limit: Any) -> None:
    points = [(float(i + 1), loss) for i, loss in enumerate(losses)]
    picture = chart("a < b & c", [Line("mean", "<b>", points, dots=True)], limits=limit)
    root = ElementTree.fromstring(picture)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    for line in root.iter("polyline"):
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
    assert len(list(root.iter("circle"))) == len(losses)


def test_a_logarithmic_axis_is_named_and_labelled() -> None:
    """Where values differ tenfold; a factor of two is the same height anywhere on it."""
    lines = [Line("mean", "", [(1.0, 8.0), (2.0, 4.0), (3.0, 0.8), (4.0, 0.4)])]
    picture = chart("Loss", lines, by_ratio=True)
    root = ElementTree.fromstring(picture)
    assert root.attrib["aria-label"] == "Loss, logarithmic axis"
    (line,) = root.iter("polyline")
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert heights[1] - heights[0] == pytest.approx(heights[3] - heights[2], abs=0.2)
    assert {"0.2", "0.5", "1", "2", "5", "10", "step 0"} <= {each.text for each in root.iter("text")}
    for values in ([3.0, 2.0], [3.0, 0.0], [3.0, -1.0]):
        plain = chart("Loss", [Line("mean", "", [(1.0, values[0]), (2.0, values[1])])], by_ratio=True)
        assert "logarithmic" not in plain


@pytest.mark.parametrize("values", [(1e-9, 3.0), (5e-4, 1e6), (1.0, 10.0), (0.999, 10.001)])
def test_a_logarithmic_axis_holds_its_values(values: tuple[float, float]) -> None:
    root = ElementTree.fromstring(chart("Loss", [Line("mean", "", [*enumerate(values)], dots=True)], by_ratio=True))
    height = float(root.attrib["viewBox"].split()[3])
    assert all(0 <= float(dot.attrib["cy"]) <= height for dot in root.iter("circle"))
    assert len(list(root.iter("line"))) <= 20


def test_a_legend_without_room_goes_on_below() -> None:
    lines = [Line("mean", f"{number} many words in a label", [(1.0, 2.0), (2.0, 1.0)]) for number in range(3)]
    root = ElementTree.fromstring(chart("Loss", lines))
    width = float(root.attrib["viewBox"].split()[2])
    labels = [each for each in root.iter("text") if "words" in (each.text or "")]
    assert len({each.attrib["y"] for each in labels}) == 3
    assert all(float(each.attrib["x"]) + 6.4 * len(each.text or "") <= width for each in labels)


def test_a_small_screen_has_a_loss_chart_of_its_width_and_nothing_wider(start: Start) -> None:
    run = start(steps=9)
    text = (run.path / "report.html").read_text()
    assert (
        f'<div class="narrow"><svg class="chart" role="img" aria-label="Loss, nats per token" viewBox="0 0 {SMALL[0]}'
        in text
    )
    assert "@media(max-width:640px)" in text
    assert max(int(width) for width in re.findall(r"min-width:(\d+)px", text)) < 400


def test_special_tokens_are_shown_quietly(start: Start) -> None:
    run = start(steps=2)
    prompt = "<s>[INST] <|im_start|>user\nIs 1 < 2 | 3 > 2?<|im_end|>" + HOSTILE
    run.update(samples=[Sample(prompt, "yes<|im_end|>", "a <b>", "<|x")])
    page_text = "".join(page(run, Curves(run)))
    parsed = _check(page_text)
    assert '<small title="&lt;|im_start|&gt;">im_start</small>user\nIs 1 &lt; 2 | 3 &gt; 2?' in page_text
    assert '<small title="&lt;s&gt;">s</small><small title="[INST]">INST</small>' in page_text
    assert "a <b>" in parsed.text
    assert "<|x" in parsed.text
    assert "<|im_" not in parsed.text


def test_the_loss_of_the_headline_is_averaged(start: Start) -> None:
    run = start(steps=40)
    average, losses = Average(10), [line["loss"] for line in run.metrics()]
    last = [average.add(loss) for loss in losses][-1]
    assert last != losses[-1]
    text = Parsed((run.path / "report.html").read_text()).text
    assert f"Training loss{last:.4f}average of 10 steps, from {losses[0]:.4f}" in text


def test_the_picture_of_the_loss_shows_every_step(start: Start) -> None:
    run = start(steps=90)
    root = ElementTree.fromstring(loss_svg(Curves(run)))
    assert root.attrib["viewBox"] == f"0 0 {LARGE[0]} {LARGE[1]}"
    drawn = {line.attrib["class"]: line.attrib["points"].split() for line in root.iter() if "points" in line.attrib}
    assert {kind: len(points) for kind, points in drawn.items()} == {"raw": 90, "mean": 90}
