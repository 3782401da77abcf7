"""The live view in a notebook: one output that is replaced, with text below it."""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from featherback.runs.events import End, Evaluation, Note
from featherback.view.frame import STYLES
from featherback.view.notebook import LOOKS, NotebookView
from featherback.view.reporter import TextReporter
from featherback.view.show import reporter
from tests.runs.test_live import STEPS, _step
from tests.runs.test_reporter import SUMMARY, begun

Shown = list[tuple[dict[str, str], dict[str, Any]]]


def _ipython(monkeypatch: pytest.MonkeyPatch, shell: object) -> Shown:
    """A stand-in for IPython, whose shell has a kernel in notebooks."""
    shown: Shown = []
    module, display = ModuleType("IPython"), ModuleType("IPython.display")
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display.display = lambda data, **how: shown.append((data, how))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


@pytest.mark.parametrize("shell", [None, SimpleNamespace()], ids=["no shell", "on a terminal"])
def test_where_there_is_no_notebook(monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
    _ipython(monkeypatch, shell)
    assert type(reporter()) is TextReporter


def test_one_output_is_replaced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = _ipython(monkeypatch, SimpleNamespace(kernel=object()))
    view = reporter()
    assert isinstance(view, NotebookView)
    view.tell(begun(steps=STEPS))
    for step in range(1, STEPS + 1):
        view.tell(_step(step))
    view.tell(Evaluation(STEPS, 1.25, True))
    view.tell(Note("a < b"))
    view.tell(End("finished", SUMMARY))
    assert {how["display_id"] for _, how in shown} == {shown[0][1]["display_id"]}
    assert [how["update"] for _, how in shown] == [False] + [True] * (len(shown) - 1)
    last = shown[-1][0]
    assert f"{STEPS}/{STEPS}" in last["text/plain"]
    assert "<pre" in last["text/html"]
    assert "\x1b" not in last["text/html"]
    assert re.sub(r"<[^>]*>", "", last["text/html"]) == last["text/plain"]
    said = capsys.readouterr().out
    assert "a < b" in said
    assert "peak memory" in said


def test_every_style_has_its_look() -> None:
    assert LOOKS.keys() == STYLES.keys()
