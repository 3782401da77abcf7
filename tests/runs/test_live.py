"""The live view: its content at every size of the screen."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace

import pytest

from featherback.runs.events import Begin, End, Evaluation, Event, Failed, Note, Paused, Resumed, Step
from featherback.view.braille import Canvas
from featherback.view.live import LiveView
from featherback.view.reporter import TextReporter
from featherback.view.show import reporter
from tests.runs.test_reporter import SUMMARY, begun

STEPS = 60
_PARTS = re.compile(r"\x1b\[(\d*)([AKJm])|\r|\n|[^\x1b\r\n]+|.", re.DOTALL)


class Screen(io.StringIO):
    """A terminal of so many columns, which knows the few codes that the view uses and wraps what is too long."""

    encoding = "utf-8"  # type: ignore[assignment]

    def __init__(self, columns: int, rows: int = 24) -> None:
        super().__init__()
        self.size = os.terminal_size((columns, rows))
        self.lines, self.row, self.column = [""], 0, 0
        self.wrapped = 0
        self.written = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written += text
        for part in _PARTS.finditer(text):
            number, code = part[1], part[2]
            if code == "A":
                self.row -= int(number)
                assert self.row >= 0, "above the first line"
            elif code == "K":
                self.lines[self.row] = self.lines[self.row][: self.column]
            elif code == "J":
                self.lines[self.row :] = [self.lines[self.row][: self.column]]
            elif code == "m":
                pass
            elif part[0] == "\r":
                self.column = 0
            elif part[0] == "\n":
                self.row, self.column = self.row + 1, 0
                self.lines += [""] * (self.row + 1 - len(self.lines))
            else:
                assert not part[0].startswith("\x1b"), repr(part[0])
                self._put(part[0])
        return len(text)

    def _put(self, text: str) -> None:
        line = self.lines[self.row]
        self.lines[self.row] = line[: self.column].ljust(self.column) + text + line[self.column + len(text) :]
        self.column += len(text)
        self.wrapped += self.column > self.size.columns

    def resize(self, columns: int) -> None:
        """Wrap lines that no longer fit, like a terminal."""
        self.size = os.terminal_size((columns, self.size.lines))
        assert self.row == len(self.lines) - 1
        self.lines = [line[at : at + columns] for line in self.lines for at in range(0, max(1, len(line)), columns)]
        self.row = len(self.lines) - 1

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def _step(step: int) -> Step:
    return Step(step, 0.5 + 2.5 / step, 2e-4, 1.0, 248, 0.98, 30.1, 56.2)


def _events(memory_mb: float | None = 96.0, held_out: bool = True) -> list[Event]:
    events: list[Event] = [begun(STEPS, memory_mb)]
    for step in range(STEPS + 1):
        events += [_step(step)] if step else []
        events += [Evaluation(step, 1 + 2 / (1 + step), step > 0)] if held_out and step % 20 == 0 else []
    return events


def _view(screen: Screen) -> LiveView:
    return LiveView(screen, lambda: screen.size, redraw=0)


@pytest.mark.parametrize("memory_mb", [96.0, 20.0, None])
@pytest.mark.parametrize("held_out", [True, False])
@pytest.mark.parametrize("columns", [1, 7, 20, 31, 45, 60, 80, 140])
@pytest.mark.parametrize("rows", [2, 9, 24])
def test_it_never_exceeds_the_screen(columns: int, rows: int, held_out: bool, memory_mb: float | None) -> None:
    screen = Screen(columns, rows)
    view = _view(screen)
    for event in [*_events(memory_mb, held_out), Paused("too hot " * 30), Resumed()]:
        view.tell(event)
        assert not screen.wrapped, screen.text
        assert len(screen.lines) <= max(rows, 2)


def test_what_it_shows_at_60_columns() -> None:
    screen = Screen(60)
    view = _view(screen)
    for event in _events()[:35]:
        view.tell(event)
    lines = screen.lines
    assert re.fullmatch(r"  step 32/60  ━+╌+   53 %  0:27 left", lines[0])
    assert any("◆" in line for line in lines)
    assert any(re.search("[⠁-⣿]", line) for line in lines)
    assert any(re.fullmatch(r"  loss      0\.[56]\d{3}   average of 10 steps   latest 0\.5781", line) for line in lines)
    assert "  held-out  1.0952   at step 20, the best so far" in lines
    assert "  speed     253 tok/s   0.98 s per step   lr 2.0e-04" in lines
    assert any(re.fullmatch(r"  memory    ━{16}╌{12}  56 of 96 MB", line) for line in lines)


def test_what_was_on_the_screen_stays_there_and_the_view_stands_once() -> None:
    screen = Screen(80)
    screen.write("$ featherback train\n")
    view = _view(screen)
    for event in _events()[:20]:
        view.tell(event)
    view.tell(Note("note: the disk is nearly full"))
    for event in _events()[20:40]:
        view.tell(event)
    assert screen.lines[:2] == ["$ featherback train", "note: the disk is nearly full"]
    assert [screen.text.count(word) for word in ("  step ", "  loss ", "  held-out ", "  memory ")] == [1] * 4


def test_it_survives_a_terminal_made_narrower_and_wider() -> None:
    screen = Screen(140)
    screen.write("$ featherback train\n")
    view = _view(screen)
    events = _events()
    for at, columns in ((20, 60), (30, 33), (40, 100), (50, 140)):
        for event in events[at - 20 : at]:
            view.tell(event)
        screen.resize(columns)
        view.tell(events[at])
        assert screen.lines[0] == "$ featherback train"
        assert screen.text.count("  step ") == 1
        assert not screen.wrapped


@pytest.mark.parametrize(
    ("last", "state"),
    [(End("finished", replace(SUMMARY, steps=STEPS)), "done"), (Failed(STEPS, "the disk is full"), "failed")],
)
def test_the_last_state_stays(last: Event, state: str) -> None:
    screen = Screen(80)
    view = LiveView(screen, lambda: screen.size, redraw=1e9)  # as if all were too quick to be drawn
    for event in [*_events(held_out=False), last]:
        view.tell(event)
    view.tell(Note("adapter: run"))
    assert re.fullmatch(rf"  step 60/60  ━+  100 %  {state}", screen.lines[0])
    assert screen.lines[-2] == "adapter: run"
    assert ("60 steps in 0:06, 2.00 s each (median), 50 tokens/s" in screen.lines) == isinstance(last, End)


@pytest.mark.parametrize(
    ("last", "state"),
    [
        (End("stopped early", SUMMARY), "stopped early"),
        (End("interrupted", SUMMARY), "interrupted"),
        (End("finished", SUMMARY), "done"),
        (Failed(31, "the disk is full"), "failed"),
    ],
)
@pytest.mark.parametrize("columns", [31, 80])
def test_a_run_that_ended_early_has_no_time_left(last: Event, state: str, columns: int) -> None:
    screen = Screen(columns)
    view = _view(screen)
    for event in [*_events()[:35], last]:
        view.tell(event)
    assert " left" not in screen.text
    if columns == 80:
        assert re.fullmatch(rf"  step 32/60  ━+╌+   53 %  {state}", screen.lines[0])


def test_pausing_is_said_in_place_and_cleaned() -> None:
    screen = Screen(80)
    view = _view(screen)
    for event in [*_events()[:10], Paused("too hot\x1b[2J\n"), Paused("too hot\x1b[2J\n")]:
        view.tell(event)
    assert screen.lines[0] == "  step  8/60  paused: too hot\\u001b[2J\\u000a"
    view.tell(Resumed())
    assert "paused" not in screen.text


def test_a_reason_without_room_is_left_out_and_not_cut() -> None:
    screen = Screen(40)
    view = _view(screen)
    for event in [*_events()[:10], Paused("the machine is on battery (17 %)")]:
        view.tell(event)
    assert screen.lines[0] == "  step  8/60  paused"


def test_no_color_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted, found in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", wanted)
        screen = Screen(80)
        view = _view(screen)
        for event in _events():
            view.tell(event)
        assert bool(re.search(r"\x1b\[\d*m", screen.written)) is found


def test_a_terminal_gets_the_view_and_a_pipe_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(reporter(Screen(80)), LiveView)
    assert type(reporter(io.StringIO())) is TextReporter


def test_a_loss_that_does_not_change_is_a_line() -> None:
    screen = Screen(60)
    view = _view(screen)
    for event in [
        Begin("run", 9, 0, None, None, {}),
        *(Step(s, 2.0, 0.0, 0.0, 1, 1.0, 1.0, 1.0) for s in range(1, 10)),
    ]:
        view.tell(event)
    assert sum(bool(re.search("[⠁-⣿]", line)) for line in screen.lines) == 1


def test_braille_dots_are_where_they_belong() -> None:
    canvas = Canvas(2, 1, (0, 3), (0, 3))
    canvas.line([(0, 0), (1, 1), (2, 2), (3, 3)])
    assert "".join(text for text, _ in canvas.row(0)) == "⡠⠊"
    canvas = Canvas(2, 2, (0, 3), (0, 7))
    canvas.line([(0, 7), (3, 0)])
    rows = ["".join(text for text, _ in canvas.row(row)) for row in (0, 1)]
    dots = [sum(bin(ord(cell) - 0x2800).count("1") for cell in row if cell != " ") for row in rows]
    assert dots == [4, 4]  # one in each row of dots: joined without a gap
    canvas.marks([(3, 0)], "x")
    assert canvas.row(1)[-1] == ("x", "mark")
