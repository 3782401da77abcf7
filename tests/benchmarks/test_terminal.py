"""Commands recorded on a terminal, the screen they leave, and its picture."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import terminal
from benchmarks.place import Place
from benchmarks.terminal import Screen, picture, record
from tests.support.tiny_chat import write_tiny_chat


def test_the_screen_of_a_live_view() -> None:
    screen = Screen(20)
    screen.feed(
        "first\r\n\x1b[1mstep 1\x1b[0m\x1b[K\r\nrest\x1b[K\r\n\x1b[2A\rstep \x1b[32m2\x1b[0m\x1b[K\r\n\x1b[Jend\r\n"
    )
    assert screen.lines() == ["first", "step \x1b[32m2\x1b[0m", "end"]


def test_long_lines_go_on_in_the_next() -> None:
    screen = Screen(4)
    screen.feed("abcdef\r\ng")
    assert screen.lines() == ["abcd", "ef", "g"]


def test_an_unknown_sequence_is_said() -> None:
    with pytest.raises(ValueError, match="unknown control sequence"):
        Screen(10).feed("\x1b[3T")


def test_a_command_sees_a_terminal(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.stdout.isatty(), os.get_terminal_size().columns, os.getcwd())"
    assert record([sys.executable, "-c", code], tmp_path).split() == ["True", str(terminal.COLUMNS), str(tmp_path)]
    with pytest.raises(RuntimeError, match="the recorded command failed"):
        record([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)


def test_the_picture_is_the_end_of_the_run(tmp_path: Path) -> None:
    model = write_tiny_chat(tmp_path / "m.gguf")
    row = terminal.rows(Place(tmp_path, print, str(model), tiny=True))["train"]()
    tree = ElementTree.fromstring(picture(row["typed"], row["screen"], row["columns"]))
    texts = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:2] == ["$", f"featherback {terminal.TRAIN}"]
    assert texts[2].startswith("step")
    assert not any("adapter:" in text for text in texts)
    height = float(tree.attrib["height"])
    assert all(0 < float(text.attrib["y"]) < height for text in tree.iter("{http://www.w3.org/2000/svg}text"))
