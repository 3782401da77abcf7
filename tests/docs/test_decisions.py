"""Every decision page has a status and a date under its title, and the index lists it with that status."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

FOLDER = ROOT / "docs" / "decisions"
DECISIONS = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")
STATUS = re.compile(
    r"# .+\n\n\*Status: (?P<status>accepted|superseded|rejected), (?P<date>\d{4}-\d\d-\d\d)"
    r"(?:; revised (?P<revised>\d{4}-\d\d-\d\d)(?: \([^)]+\))?)?\.[^*]*\*\n"
)
ROW = re.compile(r"^\| \[(?P<name>[\w-]+)\]\((?P=name)\.md\) \| .+ \| (?P<status>\w+) \|$", re.MULTILINE)


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_a_status_and_a_date(page: Path) -> None:
    found = STATUS.match(page.read_text())
    assert found, f"{page.name}: the line under the title must be like `*Status: accepted, 2026-11-21.*`"
    dates = [datetime.date.fromisoformat(found[name]) for name in ("date", "revised") if found[name]]
    assert dates == sorted(dates)


def test_the_index_lists_every_decision_with_its_status() -> None:
    index = {row["name"]: row["status"] for row in ROW.finditer((FOLDER / "README.md").read_text())}
    statuses = {page.stem: found["status"] for page in DECISIONS if (found := STATUS.match(page.read_text()))}
    assert index == statuses
