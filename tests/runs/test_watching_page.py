"""docs/watching.md: its table of events matches the events. (tests/docs runs its example.)"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from featherback.runs import events

PAGE = (Path(__file__).parents[2] / "docs" / "watching.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [kind for kind in events.Event.__subclasses__() if kind is not events.Note])
def test_the_table_of_events_is_whole(kind: type[events.Event]) -> None:
    rows = [line.split("|")[1:3] for line in PAGE.splitlines() if line.startswith("|")]
    [told] = [told for name, told in rows if f"`{kind.__name__.lower()}`" in name]
    assert {field.name for field in fields(kind)} <= set(re.findall(r"`(\w+)`", told))
