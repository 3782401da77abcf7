"""What a visitor and a new contributor meet first is short, complete and current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from featherback.version import __version__
from tests.docs.pages import PAGES, ROOT, name_of

PLACEHOLDERS = re.compile(
    r"<this repository>|github\.com/(OWNER|USER|ORG)|example\.(com|org)|TODO|FIXME|lorem", re.IGNORECASE
)


@pytest.mark.parametrize(("page", "lines"), [("README.md", 120), ("CONTRIBUTING.md", 100)])
def test_front_pages_are_short(page: str, lines: int) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= lines


@pytest.mark.parametrize("page", [*PAGES, ROOT / "pyproject.toml", ROOT / "CITATION.cff"], ids=name_of)
def test_no_page_has_a_placeholder(page: Path) -> None:
    assert not PLACEHOLDERS.search(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_line_begins_with_a_figure(page: Path) -> None:
    """Markdown ends a paragraph where a line begins with a comment."""
    assert not re.search(r"^<!--=", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_citation_has_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert citation["references"][0]["authors"]


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_issue_forms_are_complete(form: Path) -> None:
    found = yaml.safe_load(form.read_text(encoding="utf-8"))
    if form.stem != "config":
        assert {"name", "description", "body"} <= found.keys()
        assert [field["attributes"]["label"] for field in found["body"] if field["type"] != "markdown"]


def test_pre_commit_runs_what_lint_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lint = makefile[makefile.index("\nlint:") :].split("\n\n")[0]
    programs = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}
    assert programs == set(re.findall(r"\$\(BIN\)/(ruff|mypy|clang-format)", lint))
